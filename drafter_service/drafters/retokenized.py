"""A text in the target's tokens, rewritten in the drafter's tokens."""

from bisect import bisect_right
from collections.abc import Sequence

from specdec.engine.byte_tokenizer import ByteTokenizer
from specdec.rules.prefix import common_length
from specdec.sampling.vocabulary import Vocabulary

_AGAIN = 16
"""Number of tokens at the end of a text to re-encode with what follows, because a word may continue."""


class Translation:
    """Mapping from a target's vocabulary to a drafter's."""

    def __init__(self, tokenizer: ByteTokenizer, target: Vocabulary) -> None:
        self.tokenizer = tokenizer
        self.target = target
        self.same = target.shared(tokenizer.vocabulary)
        """Drafter id of each shared token, by target id."""
        self.overlap = target.overlap(tokenizer.vocabulary)
        """Number of shared tokens divided by the size of the smaller vocabulary."""


class Retokenized:
    """One sequence in the drafter's tokens.

    The split into drafter tokens does not affect correctness: q̂ is always the distribution that a draft is drawn from.
    An unusual split only makes the drafts worse.
    """

    def __init__(self, translation: Translation) -> None:
        self._way = translation
        self.ids = list(translation.tokenizer.beginning)
        """Text in the drafter's tokens."""
        self._ends = [0] * len(self.ids)
        """End of each of these tokens, as a byte offset in the text."""
        self._fixed = len(self.ids)
        """Number of leading tokens that are never re-encoded."""
        self._text = bytearray()
        """Bytes of the target's tokens. A shared special token takes one placeholder byte."""
        self._marks = [0]
        """Byte offsets of the start of the text and of the end of each target token."""

    def __len__(self) -> int:
        """Return the number of target tokens read."""
        return len(self._marks) - 1

    def position(self, count: int) -> int:
        """Return the number of `ids` within the first `count` target tokens."""
        return len(self.ids) if count == len(self) else bisect_right(self._ends, self._marks[count])

    def covered(self, count: int) -> int:
        """Return the number of target tokens that the first `count` of `ids` cover completely."""
        return bisect_right(self._marks, self._ends[count - 1]) - 1 if count else 0

    def read(self, tokens: Sequence[int]) -> int:
        """Append target tokens. Return the number of leading `ids` that did not change.

        A single shared token maps to the drafter's own token, so a chain of drafts is read back as it was drafted. The
        others are re-encoded as text, starting from an earlier word.
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
        """Drop all but the first `count` target tokens."""
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
        """Add a special token. One that the drafter lacks, or has already added at the start, is left out."""
        if same is not None and self.ids != [same]:
            self._text.append(0)
            self._add([same])
        self._fixed = len(self.ids)

    def _encode(self) -> None:
        """Re-encode the end of the text, from the start of a word some tokens earlier."""
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
