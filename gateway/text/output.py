"""From committed token ids to text that may be shown: whole characters, cut at stop strings, token by token."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from gateway.text.detokenizer import Detokenizer
from gateway.tools.parsers import overlap
from specdec.rules.logprobs import TokenLogprobs
from specdec.rules.params import Origin


@dataclass(frozen=True, slots=True)
class OutputToken:
    """One token of the output and its share of the text."""

    id: int
    text: str
    """Empty for all but the last token of a character, for special tokens, and where a stop string has begun."""
    origin: Origin
    logprobs: TokenLogprobs | None = None
    """None when the request asked for none."""


def text_of(tokens: Iterable[OutputToken]) -> str:
    """The text of tokens."""
    return "".join(token.text for token in tokens)


class OutputText:
    """The output of one generation; a token is held back while its text may still change or be cut."""

    def __init__(self, detokenizer: Detokenizer, stops: Sequence[str] = (), min_tokens: int = 0) -> None:
        """`stops` are looked for behind the first `min_tokens` tokens."""
        self.length = 0
        """Tokens of the output so far; tokens behind a stop string are not part of it."""
        self.stop = ""
        """The stop string that ended the output; empty when none did."""
        self._detokenizer = detokenizer
        self._stops = tuple(stops)
        self._unsearched = min_tokens
        """Tokens yet to come that no stop string can end with."""
        self._held: list[OutputToken] = []

    @property
    def tail(self) -> str:
        """The text that is held back."""
        return text_of(self._held)

    def take(
        self, tokens: Sequence[int], origins: Sequence[Origin], logprobs: Sequence[TokenLogprobs] = ()
    ) -> tuple[OutputToken, ...]:
        """Add the tokens of one round, up to the one that completes a stop string; not to be called after a stop.

        Args:
            tokens: ids of the round's tokens.
            origins: where each token came from.
            logprobs: log probabilities of each token, or nothing.

        Returns:
            The tokens, of this round or of earlier ones, whose text is final now.
        """
        released: tuple[OutputToken, ...] = ()
        for token, origin, own in zip(tokens, origins, logprobs or (None,) * len(tokens), strict=True):
            self._held.append(OutputToken(token, self._detokenizer.push(token), origin, own))
            self.length += 1
            if self._cut_at_stop():
                return released + self._release(len(self._held))
            released += self._release(self._final())
        return released

    def finish(self) -> tuple[OutputToken, ...]:
        """The output has ended: release all that was held back, without half a character at the end."""
        if self._held:
            last = self._held[-1]
            self._held[-1] = replace(last, text=last.text + self._detokenizer.flush())
        self._cut_at_stop()
        return self._release(len(self._held))

    def _cut_at_stop(self) -> bool:
        """Cut the held text where a stop string begins; returns whether one was found."""
        if self._unsearched > 0:
            self._unsearched -= 1
            return False
        match = find_stop(self.tail, self._stops)
        if match is None:
            return False
        room, self.stop = match
        for index, token in enumerate(self._held):
            self._held[index] = replace(token, text=token.text[:room])
            room -= len(self._held[index].text)
        return True

    def _final(self) -> int:
        """How many of the held tokens have text that no later token can change or cut."""
        count = len(self._held) - self._detokenizer.incomplete
        if self._unsearched > 0:
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


def find_stop(text: str, stops: Sequence[str]) -> tuple[int, str] | None:
    """The stop string that ends first, behind the index where it begins; None without any.

    Of several that end at one place, it is the one that begins first.
    """
    found = ((start + len(stop), start, stop) for stop in stops if (start := text.find(stop)) >= 0)
    first = min(found, default=None)
    return first and first[1:]


def held_length(text: str, stops: Sequence[str]) -> int:
    """Length of the longest suffix of `text` that more text could complete to a stop string."""
    return max((overlap(text, stop) for stop in stops), default=0)
