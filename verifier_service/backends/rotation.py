"""Whose turn it is where more sequences decode than one pass holds."""

from collections.abc import Iterable, Sequence

from verifier_service.backends.batch_plan import Row


class Rotation:
    """Gives every sequence as many passes as the others, as far as it has a row for them."""

    def __init__(self, most: int | None) -> None:
        """Let at most `most` sequences decode in a pass, all of them where it is None."""
        self._most = most
        self._passes = 0
        self._taken: dict[str, float] = {}
        """The mean number of the passes that each sequence took part in, by KV name; the last one weighs half.

        The last one alone would not do: of the sequences that were together in it, the same ones would be left out each
        time."""

    def chosen(self, waiting: Sequence[tuple[Row, int]]) -> list[tuple[Row, int]]:
        """The rows of the next pass: all prompts, and of those that decode the ones that took part longest ago.

        Args:
            waiting: as for `plan`.
        """
        if self._most is None:
            return list(waiting)
        decoding = [row for row, start in waiting if row.goal - start == 1]
        decoding.sort(key=lambda row: self.place(row.kv_name))
        late = set(decoding[self._most :])
        return [each for each in waiting if each[0] not in late]

    def place(self, kv_name: str) -> float:
        """The place of a sequence among those that decode, least first."""
        return self._taken.get(kv_name, 0.0)

    def took_part(self, kv_names: Iterable[str]) -> None:
        """Note who was in the pass."""
        self._passes += 1
        for name in kv_names:
            self._taken[name] = (self._taken.get(name, self._passes) + self._passes) / 2

    def forget(self, kv_name: str) -> None:
        """Note that a sequence has ended."""
        self._taken.pop(kv_name, None)
