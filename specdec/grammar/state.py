"""Where a generation stands in its grammar, and which tokens may follow at each position of a draft."""

import time
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Protocol, TypeVar

from llguidance import LLMatcher

from specdec.rules.prefix import common_length
from specdec.sampling.grammar import mask_bytes

_Done = TypeVar("_Done")

_CHEAP = 0.002
"""Seconds of masks up to which others may wait for them."""
_MOST_SECONDS = 2.0
"""Seconds of a processor that all masks of a generation may take together, beside those of each token."""
_TOKEN_SECONDS = 0.005


class TokenMasks(Protocol):
    """What may follow an output and each token of a draft behind it: a pure function of these tokens."""

    @property
    def seconds(self) -> float:
        """Time that the last masks took a processor."""

    @property
    def expensive(self) -> bool:
        """Whether nobody should wait for the next masks, by what the last ones took."""

    @property
    def too_complex(self) -> bool:
        """Whether masks are not computed any more."""

    def masks(self, output: Sequence[int], drafts: Sequence[int] = ()) -> list[bytes | None]:
        """What may follow `output`, and `output` with one draft more each time: γ + 1 masks; None allows every id."""

    def forced(self, output: Sequence[int], most: int) -> tuple[int, ...]:
        """The tokens, at most `most`, that are likely because the text behind `output` is forced."""


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
        self.seconds = _CHEAP
        """Time that the last masks took a processor; before the first ones, as much as is cheap."""
        self._spent = 0.0
        """That of all of them."""
        self._known: tuple[list[int], tuple[int, ...], list[bytes | None]] | None = None
        """The last output, the drafts behind it, and the masks there."""

    @property
    def expensive(self) -> bool:
        """Whether nobody should wait for the next masks, by what the last ones took."""
        return self.seconds > _CHEAP

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
        wanted, behind = list(output), tuple(drafts)
        if self._known is not None and self._known[0] == wanted and self._known[1][: len(behind)] == behind:
            return self._known[2][: len(behind) + 1]
        spent = self._spent
        masks = self._masks(wanted, behind)
        self.seconds = self._spent - spent
        self._known = wanted, behind, masks
        return masks

    def _masks(self, output: list[int], drafts: tuple[int, ...]) -> list[bytes | None]:
        masks: list[bytes | None] = []
        if not self.too_complex and self._counted(partial(self._move_to, output)):
            masks.append(self._counted(self._mask))
        for draft in drafts if masks else ():
            if self.too_complex or draft in self._end_ids or not self._counted(partial(self._read_on, draft)):
                break
            masks.append(self._counted(self._mask))
        nothing = self.too_complex or not masks
        return masks + [bytes(self._bytes) if nothing else None] * (len(drafts) + 1 - len(masks))

    def _counted(self, step: Callable[[], _Done]) -> _Done:
        """Do a step and count its time."""
        began = time.thread_time()
        done = step()
        self._spent += time.thread_time() - began
        return done

    def forced(self, output: Sequence[int], most: int) -> tuple[int, ...]:
        """The tokens, at most `most`, that write the text which must follow `output`; another way to write it may be
        possible, so this is a guess and no law."""
        if most <= 0 or self.expensive or self.too_complex or not self._move_to(output):
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

    def _read_on(self, draft: int) -> bool:
        """Consume a draft; False where the grammar does not allow it."""
        if not self._matcher.try_consume_tokens([draft]):
            return False
        self._read.append(draft)
        return True

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
