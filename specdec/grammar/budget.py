"""A token budget for a model's thinking. When the budget is spent, the closing tag is forced.

The budget is applied as a token mask, like a grammar, so every speculation mode stays exact.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import Enum

from specdec.grammar.state import TokenMasks
from specdec.rules.prefix import common_length
from specdec.sampling.grammar import mask_bytes

_CHARACTER = 4
"""Length of the longest UTF-8 character, in bytes."""


class Phase(Enum):
    """Progress of an output through its thinking."""

    BEFORE = "before"
    """The opening tag may still follow."""
    THINKING = "thinking"
    CLOSING = "closing"
    """The closing tag is being forced."""
    OVER = "over"
    """The thinking is closed, or the output has none."""


@dataclass(frozen=True, slots=True)
class _Place:
    """State of an output after one of its tokens."""

    phase: Phase
    tail: bytes = b""
    """Last bytes of the text, which may hold the beginning of a tag."""
    count: int = 0
    """Number of thinking tokens so far."""
    closed: int = 0
    """Number of closing-tag tokens at the end of the output."""


@dataclass(frozen=True, slots=True)
class BoundThinking:
    """Tags and token budget of a model's thinking."""

    openings: Collection[bytes]
    """Spellings of the opening tag; empty if the prompt opens the thinking."""
    closings: Collection[bytes]
    """Spellings of the closing tag."""
    closing_ids: Sequence[int]
    """Token ids of the closing tag."""
    budget: int
    """Maximum number of tokens between the tags. Up to three more may complete a character."""
    tokens: Sequence[bytes]
    """Bytes of each token id; ids beyond the end have none."""

    def start(self) -> _Place:
        """Return the state before the first output token."""
        return _Place(Phase.BEFORE if self.openings else Phase.THINKING)

    def after(self, place: _Place, token: int) -> _Place:
        """Return the state after one more token."""
        text = place.tail + (self.tokens[token] if token < len(self.tokens) else b"")
        match place.phase:
            case Phase.BEFORE:
                return self._begun(text)
            case Phase.CLOSING:
                return self._closing(place.closed, token)
            case Phase.THINKING:
                if self.forced(place) == token:
                    return self._closing(place.closed, token)
                begun = next((at for at in (place.closed, 0) if token == self.closing_ids[at]), -1)
                return self._thought(text, place.count + 1, begun + 1)
        return place

    def forced(self, place: _Place) -> int | None:
        """Return the only token that may follow, or None if any token may."""
        if place.phase is Phase.CLOSING:
            return self.closing_ids[place.closed]
        if place.phase is Phase.THINKING and place.count >= self.budget:
            late = place.count - self.budget >= _CHARACTER - 1
            return self.closing_ids[place.closed] if late or _is_whole(place.tail) else None
        return None

    def _begun(self, text: bytes) -> _Place:
        begun = text.lstrip()
        for opening in self.openings:
            if begun.startswith(opening):
                return self._thought(begun.removeprefix(opening), 0)
        if any(opening.startswith(begun) for opening in self.openings):
            return _Place(Phase.BEFORE, text)
        return _Place(Phase.OVER)

    def _thought(self, text: bytes, count: int, closed: int = 0) -> _Place:
        if any(closing in text for closing in self.closings):
            return _Place(Phase.OVER)
        return _Place(
            Phase.THINKING, text[-max(_CHARACTER, *map(len, self.closings)) :], count, closed % len(self.closing_ids)
        )

    def _closing(self, closed: int, token: int) -> _Place:
        """Return the state after a token while the closing tag is forced. A token outside the tag ends the thinking."""
        if token != self.closing_ids[closed] or closed + 1 == len(self.closing_ids):
            return _Place(Phase.OVER)
        return _Place(Phase.CLOSING, closed=closed + 1)


class BudgetState:
    """Masks of an optional grammar combined with the thinking budget. Like `GrammarState`, a function of the tokens."""

    def __init__(self, inner: TokenMasks | None, thinking: BoundThinking, vocab_size: int) -> None:
        self._inner = inner
        self._thinking = thinking
        self._bytes = mask_bytes(vocab_size)
        self._read: list[int] = []
        self._places = [thinking.start()]
        """States of the output: before the first token read, then after each one."""

    @property
    def seconds(self) -> float:
        """CPU time of the last masks, in seconds."""
        return 0.0 if self._inner is None else self._inner.seconds

    @property
    def expensive(self) -> bool:
        """Whether the grammar's next masks are too slow to wait for."""
        return self._inner is not None and self._inner.expensive

    @property
    def too_complex(self) -> bool:
        """Whether the grammar's masks are no longer computed."""
        return self._inner is not None and self._inner.too_complex

    def masks(self, output: Sequence[int], drafts: Sequence[int] = ()) -> list[bytes | None]:
        """Return the masks after `output` and after each draft that follows it, as `GrammarState.masks` does.

        A tag token that the grammar rejects is not forced. The grammar allows it after the next complete character.
        """
        masks = [None] * (len(drafts) + 1) if self._inner is None else self._inner.masks(output, drafts)
        places = self._behind([*output, *drafts])[len(output) :]
        return [self._bound(mask, place) for mask, place in zip(masks, places, strict=True)]

    def forced(self, output: Sequence[int], most: int) -> tuple[int, ...]:
        """Return up to `most` tokens that must follow `output`."""
        place, found = self._behind(output)[-1], list[int]()
        while len(found) < most and (token := self._thinking.forced(place)) is not None:
            found.append(token)
            place = self._thinking.after(place, token)
        if found or self._inner is None:
            return tuple(found)
        return self._inner.forced(output, most)

    def _bound(self, mask: bytes | None, place: _Place) -> bytes | None:
        token = self._thinking.forced(place)
        if token is None or (mask is not None and not mask[token // 8] >> token % 8 & 1):
            return mask
        only = bytearray(self._bytes)
        only[token // 8] = 1 << token % 8
        return bytes(only)

    def _behind(self, tokens: Sequence[int]) -> Sequence[_Place]:
        """Return the states before the first token and after each token."""
        tokens, known = list(tokens), len(self._read)
        same = known if self._read == tokens[:known] else common_length(self._read, tokens)
        del self._read[same:], self._places[same + 1 :]
        for token in tokens[same:]:
            self._places.append(self._thinking.after(self._places[-1], token))
        self._read += tokens[same:]
        return self._places


def _is_whole(tail: bytes) -> bool:
    """Whether `tail` ends at a character boundary."""
    for back, byte in enumerate(reversed(tail[-_CHARACTER:]), 1):
        if byte & 0xC0 != 0x80:
            return byte < 0xC0 or back >= 2 + (byte >= 0xE0) + (byte >= 0xF0)
    return True
