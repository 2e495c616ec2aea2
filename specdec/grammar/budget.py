"""The bound on what a model thinks: once its budget of tokens is spent, the tag that closes the thinking is forced.

The bound is a mask like that of a grammar, so drafts are judged by it as by any other: all modes stay exact.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import Enum

from specdec.grammar.state import TokenMasks
from specdec.rules.prefix import common_length
from specdec.sampling.grammar import mask_bytes

_CHARACTER = 4
"""Bytes of the longest character in UTF-8."""


class Phase(Enum):
    """How far an output is."""

    BEFORE = "before"
    """It may yet open the thinking."""
    THINKING = "thinking"
    CLOSING = "closing"
    """The closing tag is being forced."""
    OVER = "over"
    """The thinking is closed, or there is none."""


@dataclass(frozen=True, slots=True)
class _Place:
    """Where an output stands behind one of its tokens."""

    phase: Phase
    tail: bytes = b""
    """The last bytes of the text, in which a tag may have begun."""
    count: int = 0
    """Tokens thought so far."""
    closed: int = 0
    """Tokens of the closing tag with which the output ends."""


@dataclass(frozen=True, slots=True)
class BoundThinking:
    """How a model writes what it thinks, in tokens."""

    openings: Collection[bytes]
    """The spellings of the opening tag; none where the prompt opens the thinking."""
    closings: Collection[bytes]
    """The spellings of the closing tag."""
    closing_ids: Sequence[int]
    """The tokens of the closing tag."""
    budget: int
    """Most tokens between the tags; up to three more complete a character."""
    tokens: Sequence[bytes]
    """The bytes of each id; ids beyond have none."""

    def start(self) -> _Place:
        """Before the first token of the output."""
        return _Place(Phase.BEFORE if self.openings else Phase.THINKING)

    def after(self, place: _Place, token: int) -> _Place:
        """Behind one token more."""
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
        """The one token that may follow; None where any may."""
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
        """Behind a token while the tag is forced; one that is not the tag's is kept nowhere."""
        if token != self.closing_ids[closed] or closed + 1 == len(self.closing_ids):
            return _Place(Phase.OVER)
        return _Place(Phase.CLOSING, closed=closed + 1)


class BudgetState:
    """The masks of a grammar, or of none, with those that end the thinking; as `GrammarState` a function of tokens."""

    def __init__(self, inner: TokenMasks | None, thinking: BoundThinking, vocab_size: int) -> None:
        self._inner = inner
        self._thinking = thinking
        self._bytes = mask_bytes(vocab_size)
        self._read: list[int] = []
        self._places = [thinking.start()]
        """Where the output stands before and behind each token that was read."""

    @property
    def seconds(self) -> float:
        """Time that the last masks took a processor."""
        return 0.0 if self._inner is None else self._inner.seconds

    @property
    def expensive(self) -> bool:
        """Whether nobody should wait for the grammar's next masks."""
        return self._inner is not None and self._inner.expensive

    @property
    def too_complex(self) -> bool:
        """Whether the grammar's masks are not computed any more."""
        return self._inner is not None and self._inner.too_complex

    def masks(self, output: Sequence[int], drafts: Sequence[int] = ()) -> list[bytes | None]:
        """What may follow `output`, and `output` with one draft more each time; as `GrammarState.masks`.

        A token that the grammar does not allow is not forced: it allows the tag behind the next whole character.
        """
        masks = [None] * (len(drafts) + 1) if self._inner is None else self._inner.masks(output, drafts)
        places = self._behind([*output, *drafts])[len(output) :]
        return [self._bound(mask, place) for mask, place in zip(masks, places, strict=True)]

    def forced(self, output: Sequence[int], most: int) -> tuple[int, ...]:
        """The tokens, at most `most`, that must follow `output`."""
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
        """Where the output stands before the first of the tokens and behind each."""
        tokens, known = list(tokens), len(self._read)
        same = known if self._read == tokens[:known] else common_length(self._read, tokens)
        del self._read[same:], self._places[same + 1 :]
        for token in tokens[same:]:
            self._places.append(self._thinking.after(self._places[-1], token))
        self._read += tokens[same:]
        return self._places


def _is_whole(tail: bytes) -> bool:
    """Whether a text does not end inside a character."""
    for back, byte in enumerate(reversed(tail[-_CHARACTER:]), 1):
        if byte & 0xC0 != 0x80:
            return byte < 0xC0 or back >= 2 + (byte >= 0xE0) + (byte >= 0xF0)
    return True
