"""A text of the target's tokens, written with the drafter's tokens."""

from bisect import bisect_right
from collections.abc import Sequence

from specdec.engine.byte_tokenizer import ByteTokenizer
from specdec.rules.prefix import common_length
from specdec.sampling.vocabulary import Vocabulary

_AGAIN = 16
"""Tokens at the end of a text that are written again with what follows them, which may join a word that they began."""


class Translation:
    """The way from a target's vocabulary to a drafter's."""

    def __init__(self, tokenizer: ByteTokenizer, target: Vocabulary) -> None:
        self.tokenizer = tokenizer
        self.target = target
        self.same = target.shared(tokenizer.vocabulary)
        """The drafter's id of each token that both have, by the target's id."""
        self.overlap = target.overlap(tokenizer.vocabulary)
        """Tokens in common over those of the smaller vocabulary."""


class Retokenized:
    """One sequence in the drafter's tokens.

    However the drafter's tokens divide the text, q̂ stays what a draft is drawn from; tokens that the drafter's model
    is not used to only make worse drafts.
    """

    def __init__(self, translation: Translation) -> None:
        self._way = translation
        self.ids = list(translation.tokenizer.beginning)
        """The text in the drafter's tokens."""
        self._ends = [0] * len(self.ids)
        """Byte of the text at which each of these ends."""
        self._fixed = len(self.ids)
        """How many of these are never written again."""
        self._text = bytearray()
        """The bytes of the target's tokens; a special token that the drafter has too takes one, which is never read."""
        self._marks = [0]
        """Byte at which each of the target's tokens ends, behind the beginning of the text."""

    def __len__(self) -> int:
        """How many of the target's tokens it has read."""
        return len(self._marks) - 1

    def position(self, count: int) -> int:
        """How many of `ids` lie within the first `count` of the target's tokens."""
        return len(self.ids) if count == len(self) else bisect_right(self._ends, self._marks[count])

    def covered(self, count: int) -> int:
        """How many of the target's tokens the first `count` of `ids` hold as a whole."""
        return bisect_right(self._marks, self._ends[count - 1]) - 1 if count else 0

    def read(self, tokens: Sequence[int]) -> int:
        """Read more of the target's tokens; returns how many of `ids` have stayed as they were.

        A single token that the drafter has too becomes the same token, so that a chain of drafts is read as it was
        drafted. The others are written anew as text, from a word before them.
        """
        same = self._way.same.get(tokens[0]) if len(tokens) == 1 and self._ends[-1] == len(self._text) else None
        if same is not None and tokens[0] not in self._way.target.special:
            self._text += self._way.target.tokens[tokens[0]]
            self._marks.append(len(self._text))
            self._add([same])
            return len(self.ids) - 1
        first = self._beginning_of_word()
        before = self.ids[first:]
        self._write(tokens)
        return first + common_length(before, self.ids[first:])

    def truncate(self, count: int) -> None:
        """Forget all but the first `count` of the target's tokens."""
        del self._marks[count + 1 :]
        del self._text[self._marks[-1] :]
        kept = bisect_right(self._ends, self._marks[-1])
        del self.ids[kept:], self._ends[kept:]
        self._fixed = min(self._fixed, kept)

    def _write(self, tokens: Sequence[int]) -> None:
        for token in tokens:
            if token in self._way.target.special:
                self._encode()
                self._add_special(self._way.same.get(token))
            else:
                self._text += self._way.target.tokens[token]
            self._marks.append(len(self._text))
        self._encode()

    def _add_special(self, same: int | None) -> None:
        """Add a special token; one that the drafter does not have, or has put there itself, is left out."""
        if same is not None and self.ids != [same]:
            self._text.append(0)
            self._add([same])
        self._fixed = len(self.ids)

    def _encode(self) -> None:
        """Write the end of the text anew, from a word that begins some tokens before it."""
        first = self._beginning_of_word()
        start = self._ends[first - 1]
        del self.ids[first:], self._ends[first:]
        if start < len(self._text):
            self._add(self._way.tokenizer.encode(bytes(self._text[start:])))

    def _add(self, ids: Sequence[int]) -> None:
        known = self._way.tokenizer.vocabulary.tokens
        for each in ids:
            self.ids.append(each)
            self._ends.append(min(self._ends[-1] + len(known[each]), len(self._text)))
        # Bytes for which the drafter has no token are left out.
        self._ends[-1] = len(self._text)

    def _beginning_of_word(self) -> int:
        latest = max(self._fixed, len(self.ids) - _AGAIN)
        earliest = max(self._fixed, latest - _AGAIN)
        starts = ((at, self._ends[at - 1]) for at in range(latest, earliest, -1))
        return next((at for at, start in starts if self._text[start : start + 1].isspace()), earliest)
