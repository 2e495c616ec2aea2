"""Converts committed token ids to text that may be shown: whole characters, cut at stop strings."""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from gateway.text.detokenizer import Detokenizer
from gateway.tools.parsers import overlap
from specdec.rules.speculation import Origin
from specdec.sampling.logprobs import TokenLogprobs


class OutputToken(NamedTuple):
    """Output token and its share of the text."""

    id: int
    text: str
    """Text of the token; empty for special tokens, inside a character, and inside a cut stop string."""
    origin: Origin
    logprobs: TokenLogprobs | None = None
    """Log probabilities; None if the request asked for none."""
    special: str = ""
    """Name of a special token, which is not part of the text."""


def text_of(tokens: Iterable[OutputToken]) -> str:
    """Return the joined text of the tokens."""
    return "".join(token.text for token in tokens)


class OutputText:
    """Output of one generation. A token is held back while its text may still change or be cut.

    Stop strings are matched against the text; those that name special tokens also match these tokens.
    """

    def __init__(
        self, detokenizer: Detokenizer, stops: Sequence[str] = (), min_tokens: int = 0, shows_stop: bool = False
    ) -> None:
        """Search for `stops` after the first `min_tokens` tokens; `shows_stop` keeps a found one in the text."""
        self.length = 0
        """Number of output tokens so far, up to a stop string."""
        self.stop = ""
        """Stop string that ended the output; empty if none did."""
        self._own = 0
        """Number of last output tokens that belong to the stop string alone."""
        self._detokenizer = detokenizer
        self._shows_stop = shows_stop
        self._stops = tuple(stops)
        self._marked = {marked: stop for stop in stops if (marked := detokenizer.marked(stop)) != stop}
        """Stop strings that name special tokens, by their marked form."""
        self._unsearched = min_tokens
        """Number of next tokens that cannot complete a stop string."""
        self._held: list[OutputToken] = []

    @property
    def kept(self) -> int:
        """Number of output tokens before the stop string, including one that begins before it and ends in it."""
        return self.length - self._own

    @property
    def tail(self) -> str:
        """Text held back."""
        return text_of(self._held)

    def take(
        self, tokens: Sequence[int], origins: Sequence[Origin], logprobs: Sequence[TokenLogprobs] = ()
    ) -> tuple[OutputToken, ...]:
        """Add the tokens of one round, up to the one that completes a stop string. Do not call it after a stop.

        Args:
            tokens: ids of the round's tokens.
            origins: origin of each token.
            logprobs: log probabilities of each token, or empty.

        Returns:
            The tokens, from this round or earlier ones, whose text is now final.
        """
        released: list[OutputToken] = []
        for token, origin, own in zip(tokens, origins, logprobs or (None,) * len(tokens), strict=True):
            text, special = self._detokenizer.push(token), self._detokenizer.special(token)
            added = OutputToken(token, text, origin, own, special)
            self.length += 1
            if not (self._stops or self._held or self._detokenizer.incomplete):
                released.append(added)
                continue
            self._held.append(added)
            if self._cut_at_stop():
                released += self._release(len(self._held))
                break
            released += self._release(self._final())
        return tuple(released)

    def finish(self) -> tuple[OutputToken, ...]:
        """End the output and return the tokens held back; an incomplete character becomes replacement characters."""
        if self._held:
            last = self._held[-1]
            self._held[-1] = last._replace(text=last.text + self._detokenizer.flush())
        self._cut_at_stop()
        return tuple(self._release(len(self._held)))

    def _views(self) -> Iterator[tuple[list[str], Sequence[str]]]:
        """Yield the held text by token with its stop strings, first as shown and then with marks."""
        yield [token.text for token in self._held], self._stops
        if self._marked:
            marks = [self._detokenizer.mark(token.id) for token in self._held]
            yield [mark or token.text for mark, token in zip(marks, self._held, strict=True)], tuple(self._marked)

    def _cut_at_stop(self) -> bool:
        """Cut the held text at a stop string; return whether one was found."""
        if self._unsearched > 0:
            self._unsearched -= 1
            return False
        if not self._stops:
            return False
        for texts, stops in self._views():
            if match := find_stop("".join(texts), stops):
                start, found = match
                self.stop = self._marked.get(found, found)
                self._cut(texts, start + len(found) if self._shows_stop else start)
                return True
        return False

    def _cut(self, texts: Sequence[str], start: int) -> None:
        """Cut the held text at character `start` of `texts`. Tokens left without text belong to the stop string."""
        own, at = len(texts), 0
        for index, text in enumerate(texts):
            token, room = self._held[index], start - at
            self._held[index] = token._replace(text=token.text[: max(room, 0)])
            at += len(text)
            if room <= 0 and at > start:
                own = min(own, index)
        while own and not texts[own - 1] and not self._detokenizer.mark(self._held[own - 1].id):
            own -= 1  # incomplete part of the first character
        self._own = 0 if self._shows_stop else len(texts) - own

    def _final(self) -> int:
        """Return the number of held tokens whose text later tokens cannot change or cut."""
        count = len(self._held) - self._detokenizer.incomplete
        if self._unsearched > 0 or not self._stops:
            return count
        return min(_uncut(texts[:count], "".join(texts), stops) for texts, stops in self._views())

    def _release(self, count: int) -> list[OutputToken]:
        released, self._held = self._held[:count], self._held[count:]
        return released


def _uncut(texts: Sequence[str], text: str, stops: Sequence[str]) -> int:
    """Return how many leading `texts` cannot be part of a stop string, or of a stop string's first character."""
    room, clear = len(text) - held_length(text, stops), 0
    for index, each in enumerate(texts, start=1):
        room -= len(each)
        if room < 0:
            return clear
        clear = index if each else clear
    return len(texts)


def find_stop(text: str, stops: Sequence[str]) -> tuple[int, str] | None:
    """Return the start index and the text of the stop string that ends first; None if there is none.

    If several end at the same position, the one that begins first wins.
    """
    found = ((start + len(stop), start, stop) for stop in stops if (start := text.find(stop)) >= 0)
    first = min(found, default=None)
    return first and first[1:]


def held_length(text: str, stops: Sequence[str]) -> int:
    """Return the length of the longest suffix of `text` that further text could complete to a stop string."""
    return max((overlap(text, stop) for stop in stops), default=0)
