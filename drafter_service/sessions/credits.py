"""Credits: what the verifiers may use of a drafter's steps, so that none takes the share of another."""

from collections.abc import Mapping


class Credits:
    """Divides what a step can do among the verifiers that want some of it, evenly over time.

    While there is enough for all, everyone gets what they want, and nothing is counted.
    """

    def __init__(self) -> None:
        self._used: dict[str, int] = {}
        """Credits that each verifier has used since credits were last short, of those that still want some."""

    def divide(self, wanted: Mapping[str, int], room: int) -> dict[str, int]:
        """How much of `room` each verifier gets.

        Those who have used least come first, and what one does not need is left to the others. A verifier that comes
        back has used as little as anyone there: it is owed nothing for the time when it wanted nothing.
        """
        if sum(wanted.values()) <= room:
            return dict(wanted)
        least = min((self._used[each] for each in wanted if each in self._used), default=0)
        used = {each: self._used.get(each, least) - least for each in wanted}
        given = _filled(wanted, used, room)
        self._used = {each: used[each] + given[each] for each in wanted}
        return given


def _filled(wanted: Mapping[str, int], used: Mapping[str, int], room: int) -> dict[str, int]:
    """Fill everyone's use up to one level, as far as they want, so that all of `room` is given."""

    def up_to(level: int) -> dict[str, int]:
        return {each: min(max(level - used[each], 0), wanted[each]) for each in wanted}

    low, high = 0, max(used.values()) + room
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if sum(up_to(middle).values()) <= room else (low, middle - 1)
    given = up_to(low)
    more = [each for each in wanted if used[each] <= low and given[each] < wanted[each]]
    for each in more[: room - sum(given.values())]:
        given[each] += 1
    return given
