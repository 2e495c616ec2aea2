"""From committed token ids to text that may be shown: whole characters, cut at stop strings, token by token."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from gateway.text.detokenizer import Detokenizer
from gateway.tools.parsers import overlap
from specdec.rules.speculation import Origin
from specdec.sampling.logprobs import TokenLogprobs


@dataclass(frozen=True, slots=True)
class OutputToken:
    """One token of the output and its share of the text."""

    id: int
    text: str
    """Empty for special tokens, inside a character, and where a stop string has begun."""
    origin: Origin
    logprobs: TokenLogprobs | None = None
    """None when the request asked for none."""
    special: str = ""
    """The name of a special token, which is no text."""


def text_of(tokens: Iterable[OutputToken]) -> str:
    """The text of tokens."""
    return "".join(token.text for token in tokens)


class OutputText:
    """The output of one generation; a token is held back while its text may still change or be cut.

    Stop strings are looked for in the text, and those that name special tokens also among these.
    """

    def __init__(
        self, detokenizer: Detokenizer, stops: Sequence[str] = (), min_tokens: int = 0, shows_stop: bool = False
    ) -> None:
        """`stops` are looked for behind the first `min_tokens` tokens; `shows_stop` shows the one that is found."""
        self.length = 0
        """Tokens of the output so far; tokens behind a stop string are not part of it."""
        self.stop = ""
        """The stop string that ended the output; empty when none did."""
        self._own = 0
        """Tokens at the end of the output that are the stop string's own."""
        self._detokenizer = detokenizer
        self._shows_stop = shows_stop
        self._stops = tuple(stops)
        self._marked = {marked: stop for stop in stops if (marked := detokenizer.marked(stop)) != stop}
        """Stop strings in which special tokens are named, by their marked form."""
        self._unsearched = min_tokens
        """Tokens yet to come that no stop string can end with."""
        self._held: list[OutputToken] = []

    @property
    def kept(self) -> int:
        """Tokens of the output in front of the stop string; one that begins before it and ends in it is among them."""
        return self.length - self._own

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
        """The output has ended: release all that was held back; half a character at the end is shown as none."""
        if self._held:
            last = self._held[-1]
            self._held[-1] = replace(last, text=last.text + self._detokenizer.flush())
        self._cut_at_stop()
        return tuple(self._release(len(self._held)))

    def _views(self) -> Iterator[tuple[list[str], Sequence[str]]]:
        """The held text, token by token, and the stop strings to look for in it: as it is shown, and with marks."""
        yield [token.text for token in self._held], self._stops
        if self._marked:
            marks = [self._detokenizer.mark(token.id) for token in self._held]
            yield [mark or token.text for mark, token in zip(marks, self._held, strict=True)], tuple(self._marked)

    def _cut_at_stop(self) -> bool:
        """Cut the held text where a stop string begins; returns whether one was found."""
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
        """End the held text at the character `start` of `texts`; tokens of which nothing is left are a stop's own."""
        own, at = len(texts), 0
        for index, text in enumerate(texts):
            token, room = self._held[index], start - at
            self._held[index] = replace(token, text=token.text[: max(room, 0)])
            at += len(text)
            if room <= 0 and at > start:
                own = min(own, index)
        while own and not texts[own - 1] and not self._detokenizer.mark(self._held[own - 1].id):
            own -= 1  # half of the first character
        self._own = 0 if self._shows_stop else len(texts) - own

    def _final(self) -> int:
        """How many of the held tokens have text that no later token can change or cut."""
        count = len(self._held) - self._detokenizer.incomplete
        if self._unsearched > 0 or not self._stops:
            return count
        return min(_uncut(texts[:count], "".join(texts), stops) for texts, stops in self._views())

    def _release(self, count: int) -> list[OutputToken]:
        released, self._held = self._held[:count], self._held[count:]
        return released


def _uncut(texts: Sequence[str], text: str, stops: Sequence[str]) -> int:
    """How many of the texts with which `text` begins can be in no stop string, nor begin the character of one."""
    room, clear = len(text) - held_length(text, stops), 0
    for index, each in enumerate(texts, start=1):
        room -= len(each)
        if room < 0:
            return clear
        clear = index if each else clear
    return len(texts)


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
