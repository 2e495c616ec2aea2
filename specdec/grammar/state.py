"""Position of a generation in its grammar, and the tokens allowed at each position of a draft."""

import time
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Protocol, TypeVar

from llguidance import LLMatcher

from specdec.rules.prefix import common_length
from specdec.sampling.grammar import mask_bytes

_Done = TypeVar("_Done")

_CHEAP = 0.002
"""Maximum CPU time of masks, in seconds, that other work may wait for."""
_MOST_SECONDS = 2.0
"""CPU seconds allowed for all masks of a generation, in addition to `_TOKEN_SECONDS` for each token."""
_TOKEN_SECONDS = 0.005


class TokenMasks(Protocol):
    """Tokens allowed after an output and after each draft token that follows it. A pure function of those tokens."""

    @property
    def seconds(self) -> float:
        """CPU time of the last masks, in seconds."""

    @property
    def expensive(self) -> bool:
        """Whether the last masks took so long that other work should not wait for the next ones."""

    @property
    def too_complex(self) -> bool:
        """Whether masks are no longer computed."""

    def masks(self, output: Sequence[int], drafts: Sequence[int] = ()) -> list[bytes | None]:
        """Return γ + 1 masks: one after `output`, then one after each draft. None allows every id."""

    def forced(self, output: Sequence[int], most: int) -> tuple[int, ...]:
        """Return up to `most` tokens that are likely because the grammar forces the text after `output`."""


class GrammarState:
    """Grammar masks as a pure function of the tokens so far. The state kept between calls is only a cache.

    A rejected draft, a retry or a move to another verifier therefore needs no rollback.
    """

    def __init__(self, matcher: LLMatcher, vocab_size: int, end_ids: Collection[int]) -> None:
        """Start before the first token of the grammar. The state takes ownership of `matcher`."""
        self._matcher = matcher
        self._bytes = mask_bytes(vocab_size)
        self._end_ids = end_ids
        self._read: list[int] = []
        """Tokens that the matcher has consumed."""
        self.seconds = _CHEAP
        """CPU time of the last masks, in seconds. Starts at the threshold of `expensive`."""
        self._spent = 0.0
        """CPU time of all masks so far, in seconds."""
        self._known: tuple[list[int], tuple[int, ...], list[bytes | None]] | None = None
        """Last output, the drafts that followed it, and their masks."""

    @property
    def expensive(self) -> bool:
        """Whether the last masks took so long that other work should not wait for the next ones."""
        return self.seconds > _CHEAP

    @property
    def too_complex(self) -> bool:
        """Whether masks are no longer computed, because the library gave up or the CPU budget is spent."""
        return self._matcher.is_error() or self._spent > _MOST_SECONDS + _TOKEN_SECONDS * len(self._read)

    def masks(self, output: Sequence[int], drafts: Sequence[int] = ()) -> list[bytes | None]:
        """Return γ + 1 masks: one after `output`, then one after each draft.

        None allows every id. It stands after an end id and after a draft that the grammar rejects, where no token is
        kept. An empty mask means that no distribution exists, so the generation ends with an error. It stands where
        the grammar became too complex, where `output` violates it, and where nothing can complete `output`.
        """
        wanted, drafted = list(output), tuple(drafts)
        if self._known is not None and self._known[0] == wanted and self._known[1][: len(drafted)] == drafted:
            return self._known[2][: len(drafted) + 1]
        spent = self._spent
        masks = self._masks(wanted, drafted)
        self.seconds = self._spent - spent
        self._known = wanted, drafted, masks
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
        """Run a step and add its CPU time to the total."""
        began = time.thread_time()
        done = step()
        self._spent += time.thread_time() - began
        return done

    def forced(self, output: Sequence[int], most: int) -> tuple[int, ...]:
        """Return up to `most` tokens that spell the text forced after `output`: a guess, as other spellings may be
        valid."""
        if most <= 0 or self.expensive or self.too_complex or not self._move_to(output):
            return ()
        return tuple(self._matcher.compute_ff_tokens()[:most])

    def _mask(self) -> bytes:
        mask = self._matcher.compute_bitmask()[: self._bytes].ljust(self._bytes, b"\0")
        return mask if self._matcher.is_accepting() else self._without_ends(mask)

    def _without_ends(self, mask: bytes) -> bytes:
        """Return the mask without end ids, which the library also allows inside a text that nothing can complete."""
        bits = bytearray(mask)
        for end in self._end_ids:
            bits[end // 8] &= ~(1 << end % 8)
        return bytes(bits)

    def _read_on(self, draft: int) -> bool:
        """Consume a draft. Return False if the grammar rejects it."""
        if not self._matcher.try_consume_tokens([draft]):
            return False
        self._read.append(draft)
        return True

    def _move_to(self, output: Sequence[int]) -> bool:
        """Consume exactly `output`. Return False if the grammar rejects it."""
        wanted = list(output)
        if self._read != wanted[: len(self._read)]:
            same = common_length(self._read, wanted)
            self._matcher.rollback(len(self._read) - same)
            del self._read[same:]
        more = wanted[len(self._read) :]
        taken = self._matcher.try_consume_tokens(more) if more else 0
        self._read += more[:taken]
        return taken == len(more) and not self._matcher.is_error()
