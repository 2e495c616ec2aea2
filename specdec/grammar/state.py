"""Where a generation stands in its grammar, and which tokens may follow at each position of a draft."""

import time
from collections.abc import Collection, Sequence

from llguidance import LLMatcher

from specdec.rules.prefix import common_length
from specdec.sampling.grammar import mask_bytes

_CHEAP = 0.002
"""Seconds of masks up to which a guess of forced tokens costs no event loop anything."""
_MOST_SECONDS = 2.0
"""Seconds that all masks of a generation may take together, beside those of each token."""
_TOKEN_SECONDS = 0.005


class GrammarState:
    """A pure function of the tokens so far. What it keeps of the last call only saves the work of reading them again.

    So a rejected draft, a retry or another verifier leaves no trace: state and tokens cannot disagree.
    """

    def __init__(self, matcher: LLMatcher, vocab_size: int, end_ids: Collection[int]) -> None:
        """Begin before the first token of the grammar; nobody else uses the matcher."""
        self._matcher = matcher
        self._bytes = mask_bytes(vocab_size)
        self._end_ids = end_ids
        self._read: list[int] = []
        """The tokens that the matcher has consumed."""
        self.seconds = 0.0
        """Time of the last call of `masks`."""
        self._spent = 0.0
        """Time of all of them."""

    @property
    def too_complex(self) -> bool:
        """Whether masks are not computed any more: the library gave up, or they took too long."""
        return self._matcher.is_error() or self._spent > _MOST_SECONDS + _TOKEN_SECONDS * len(self._read)

    def masks(self, output: Sequence[int], drafts: Sequence[int] = ()) -> list[bytes | None]:
        """What may follow `output`, and `output` with one draft more each time: γ + 1 masks.

        None allows every id: behind an end id, and behind a draft that the grammar does not allow, no token is kept,
        whatever is drawn there. A mask without an id stands where the library gave up on a grammar that got too
        complex, where `output` is not of the grammar, and where it is and nothing completes it: there is no
        distribution, so that the generation ends with an error and no token is made up.
        """
        if self.too_complex:
            return [bytes(self._bytes)] * (len(drafts) + 1)
        began = time.perf_counter()
        masks = self._masks(output, drafts)
        self.seconds = time.perf_counter() - began
        self._spent += self.seconds
        return masks

    def _masks(self, output: Sequence[int], drafts: Sequence[int]) -> list[bytes | None]:
        if not self._move_to(output):
            return [bytes(self._bytes)] * (len(drafts) + 1)
        masks: list[bytes | None] = [self._mask()]
        for draft in drafts:
            if draft in self._end_ids or not self._matcher.try_consume_tokens([draft]):
                break
            self._read.append(draft)
            masks.append(self._mask())
        return masks + [None] * (len(drafts) + 1 - len(masks))

    def forced(self, output: Sequence[int], most: int) -> tuple[int, ...]:
        """The tokens, at most `most`, that write the text which must follow `output`; another way to write it may be
        possible, so this is a guess and no law."""
        if most <= 0 or self.seconds > _CHEAP or not self._move_to(output):
            return ()
        return tuple(self._matcher.compute_ff_tokens()[:most])

    def _mask(self) -> bytes:
        mask = self._matcher.compute_bitmask()[: self._bytes].ljust(self._bytes, b"\0")
        return mask if self._matcher.is_accepting() else self._without_ends(mask)

    def _without_ends(self, mask: bytes) -> bytes:
        """A mask that does not end the output; the library allows an end also where no text can follow half a text."""
        bits = bytearray(mask)
        for end in self._end_ids:
            bits[end // 8] &= ~(1 << end % 8)
        return bytes(bits)

    def _move_to(self, output: Sequence[int]) -> bool:
        """Consume exactly `output`; False where the grammar does not allow it."""
        wanted = list(output)
        if self._read != wanted[: len(self._read)]:
            same = common_length(self._read, wanted)
            self._matcher.rollback(len(self._read) - same)
            del self._read[same:]
        more = wanted[len(self._read) :]
        taken = self._matcher.try_consume_tokens(more) if more else 0
        self._read += more[:taken]
        return taken == len(more) and not self._matcher.is_error()
