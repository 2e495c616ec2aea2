"""What a client saw and what the store kept, against what an undisturbed run gives; pure, and able to fail."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

from tests.chaos.stream import Answer, Stream


@dataclass(frozen=True, slots=True)
class Findings:
    """Tokens that are not as they should be; all zero when nothing is wrong."""

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
    """Every stream with what is wrong about it.

    Args:
        streams: as clients saw them, ended or given up.
        expected: of each scenario, what an undisturbed run gives.
        logs: of each generation, the output tokens the store holds; one that is not there holds none.
    """
    for stream in streams:
        findings = of_client(expected[stream.scenario], stream)
        for generation, shown in stream.shown.items():
            findings += of_store(expected[stream.scenario], logs.get(generation, ()), shown)
        yield stream, findings


def of_client(expected: Answer, stream: Stream) -> Findings:
    """A client must have every token once, in order, and with them the same text and the same end."""
    found = compare(expected.tokens, stream.tokens)
    if not found and (stream.text, stream.finish) != (expected.text, expected.finish):
        return Findings(diverged=1)
    return found


def of_store(expected: Answer, log: Sequence[int], shown: int) -> Findings:
    """The store must hold every token that was shown, and nothing that an undisturbed run would not give."""
    return compare(expected.tokens, log, whole=False) + Findings(lost=max(0, shown - len(log)))


def compare(expected: Sequence[int], got: Sequence[int], *, whole: bool = True) -> Findings:
    """Align two sequences; `whole` says that `got` must not end early."""
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
    """Whether what stands before or behind `got[start:end]` is the same once more."""
    piece, size = list(got[start:end]), end - start
    before, behind = list(got[max(0, start - size) : start]), list(got[end : end + size])
    return piece in (before, behind)
