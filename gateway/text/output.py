"""From committed token ids to text that may be shown: characters whole, stop strings cut, each piece with its token."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from gateway.text.detokenizer import Detokenizer
from gateway.text.stops import find_stop, held_length
from specdec.rules.logprobs import TokenLogprobs
from specdec.rules.params import Origin


@dataclass(frozen=True, slots=True)
class OutputToken:
    """One token of the output and its share of the text."""

    id: int
    text: str
    """Empty for all but the last token of a character, for special tokens, and past a stop string's beginning."""
    origin: Origin
    logprobs: TokenLogprobs | None = None
    """None when nobody asked."""


@dataclass(frozen=True, slots=True)
class Taken:
    """What one round came to."""

    count: int
    """Tokens taken: those behind a stop string are not part of the output."""
    released: tuple[OutputToken, ...]
    """Tokens, of this round or before, whose text is final now."""
    stop: str = ""
    """The stop string that ended the output."""

    @property
    def text(self) -> str:
        """The text that may be shown now."""
        return "".join(token.text for token in self.released)


class OutputText:
    """The output of one generation; a token is held back while its text may still change or be cut."""

    def __init__(self, detokenizer: Detokenizer, stops: Sequence[str] = (), min_tokens: int = 0) -> None:
        self._detokenizer = detokenizer
        self._stops = tuple(stops)
        self._free = min_tokens
        self._held: list[OutputToken] = []

    @property
    def tail(self) -> str:
        """The text held back."""
        return "".join(token.text for token in self._held)

    def take(self, tokens: Sequence[int], origins: Sequence[Origin], logprobs: Sequence[TokenLogprobs] = ()) -> Taken:
        """Add the tokens of one round, with their log probabilities if there are any; not after a stop."""
        released: list[OutputToken] = []
        scores = logprobs or (None,) * len(tokens)
        for count, (token, origin, score) in enumerate(zip(tokens, origins, scores, strict=True), start=1):
            self._held.append(OutputToken(token, self._detokenizer.push(token), origin, score))
            stop = self._cut_at_stop()
            if stop:
                return Taken(count, (*released, *self._release(len(self._held))), stop)
            released += self._release(self._final())
        return Taken(len(tokens), tuple(released))

    def finish(self) -> Taken:
        """The output has ended: what was held back is final, except half a character, which is dropped."""
        if self._held:
            last = self._held[-1]
            self._held[-1] = replace(last, text=last.text + self._detokenizer.flush())
        stop = self._cut_at_stop()
        return Taken(0, self._release(len(self._held)), stop)

    def _cut_at_stop(self) -> str:
        if self._free > 0:
            self._free -= 1
            return ""
        match = find_stop(self.tail, self._stops)
        if match is None:
            return ""
        self._cut(match.start)
        return match.stop

    def _cut(self, room: int) -> None:
        for index, token in enumerate(self._held):
            self._held[index] = replace(token, text=token.text[:room])
            room -= len(self._held[index].text)

    def _final(self) -> int:
        """How many of the held tokens have text that nothing to come can change."""
        count = len(self._held) - self._detokenizer.incomplete
        if self._free > 0:
            return count
        room = len(self.tail) - held_length(self.tail, self._stops)
        for index, token in enumerate(self._held[:count]):
            room -= len(token.text)
            if room < 0:
                return index
        return count

    def _release(self, count: int) -> tuple[OutputToken, ...]:
        released, self._held = tuple(self._held[:count]), self._held[count:]
        return released
