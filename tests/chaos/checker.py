"""Comparison of the tokens that a client received and the store holds with the answer of an undisturbed run."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

from tests.chaos.stream import Answer, Stream


@dataclass(frozen=True, slots=True)
class Findings:
    """Counts of wrong tokens. All are zero in a correct run."""

    lost: int = 0
    duplicated: int = 0
    diverged: int = 0

    def __add__(self, other: "Findings") -> "Findings":
        return Findings(self.lost + other.lost, self.duplicated + other.duplicated, self.diverged + other.diverged)

    def __bool__(self) -> bool:
        return bool(self.lost or self.duplicated or self.diverged)


def check(
    streams: Sequence[Stream], expected: Mapping[str, Answer], logs: Mapping[str, Sequence[int]]
) -> Iterator[tuple[Stream, Findings]]:
    """Yield every stream with its findings.

    Args:
        streams: what clients received, including streams that they gave up.
        expected: the answer of an undisturbed run, by the name of the scenario.
        logs: the output tokens that the store holds, by the name of the generation. A missing entry means none.
    """
    for stream in streams:
        findings = of_client(expected[stream.scenario], stream)
        for generation, shown in stream.shown.items():
            findings += of_store(expected[stream.scenario], logs.get(generation, ()), shown)
        yield stream, findings


def of_client(expected: Answer, stream: Stream) -> Findings:
    """Check that a client has every token once and in order, the same text, and the same finish reason."""
    found = compare(expected.tokens, stream.tokens)
    if not found and (stream.text, stream.finish) != (expected.text, expected.finish):
        return Findings(diverged=1)
    return found


def of_store(expected: Answer, log: Sequence[int], shown: int) -> Findings:
    """Check that the store holds every token shown, and no token that differs from an undisturbed run."""
    return compare(expected.tokens, log, whole=False) + Findings(lost=max(0, shown - len(log)))


def compare(expected: Sequence[int], got: Sequence[int], *, whole: bool = True) -> Findings:
    """Align two sequences of tokens. With `whole`, an early end of `got` is a loss."""
    if list(got) == list(expected if whole else expected[: len(got)]):
        return Findings()
    found = Findings()
    for kind, left, right, start, end in SequenceMatcher(None, expected, got, autojunk=False).get_opcodes():
        match kind:
            case "delete" if whole or right < len(expected):
                found += Findings(lost=right - left)
            case "insert" if _repeats(got, start, end):
                found += Findings(duplicated=end - start)
            case "insert" | "replace":
                found += Findings(diverged=max(right - left, end - start))
    return found


def _repeats(got: Sequence[int], start: int, end: int) -> bool:
    """Whether the same tokens occur directly before or after `got[start:end]`."""
    piece, size = list(got[start:end]), end - start
    before, after = list(got[max(0, start - size) : start]), list(got[end : end + size])
    return piece in (before, after)
