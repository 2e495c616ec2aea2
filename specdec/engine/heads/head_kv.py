"""The keys and values of a head's sequences, and packed passes of the head over them.

Slot s of a sequence holds the pair of the state at position `first + s` and the token after it. So a slot depends on no
token behind that one, and sequences with equal tokens share the blocks of their first slots, as they do in the target.
"""

from collections.abc import Sequence
from itertools import product

import torch
from torch import Tensor

from specdec.engine.batch import PackedBatch
from specdec.engine.cpu.cpp_library import HostCode
from specdec.engine.cpu.operator import host_attention
from specdec.engine.cpu.slabs import Slab, SlabStore
from specdec.engine.heads.eagle3 import Eagle3Head
from specdec.engine.kv.layout import KvLayout
from specdec.engine.kv.pool import KvMemory, KvPool
from specdec.errors import ModelRefused

_TRIAL = "trial"
"""Name of the sequence of the first passes."""


class HeadKv:
    """The memory of one head. A sequence that begins after its first token shares nothing with others."""

    def __init__(
        self, head: Eagle3Head, dtype: torch.dtype, device: torch.device, budget: int, attention: HostCode, name: str
    ) -> None:
        """Open the memory.

        Args:
            head: the head.
            dtype: dtype of keys and values.
            device: device of the head.
            budget: bytes of all keys and values.
            attention: implementation of attention on the host.
            name: identifies the head and its target, whose blocks no other shares.

        Raises:
            ModelRefused: the device is not the host, or the budget holds no page.
        """
        if device.type != "cpu":
            raise ModelRefused(f"a head drafts on the host only, the target is on {device}")
        self._head = head
        self._attend_in = host_attention(attention, dtype)
        store = SlabStore(head_layout(head, dtype, device), budget)
        if not store.total:
            raise ModelRefused(f"kv_bytes leave {budget} bytes to the head, a page takes {store.page_bytes}")
        self._pool: KvPool[Slab] = KvPool(store, name)
        self._first: dict[str, int] = {}

    @property
    def memory(self) -> KvMemory:
        """Use of the memory."""
        return self._pool.memory

    @property
    def capacity(self) -> int:
        """Most slots of one sequence."""
        return self._pool.capacity

    def __contains__(self, session: object) -> bool:
        return session in self._first

    def open(self, session: str, limit: int, tokens: Sequence[int], domain: str, known: int) -> bool:
        """Open a sequence, and reuse the slots that others of its domain have computed.

        If fewer slots are found than the target has tokens, whose states are gone, the sequence begins there: the head
        then sees no earlier tokens.

        Args:
            session: name of the sequence.
            limit: most tokens of the sequence.
            tokens: tokens of the sequence so far.
            domain: sequences of other domains share nothing with this one.
            known: number of tokens whose keys and values the target has already.

        Returns:
            False if there is no memory now.
        """
        root = f"{domain}\0{tokens[0]}"  # the first slot's token is the second, so the first one belongs to the root
        if not self._pool.admit(session, limit, tokens[1:], root):
            return False
        self._first[session] = 0
        if self._pool[session].length < known:
            return self.restart(session, known)
        self.truncate(session, known)
        return True

    def restart(self, session: str, position: int) -> bool:
        """Begin a sequence anew at `position`, without its earlier slots. End it if there is no memory now.

        Returns:
            False if the sequence has ended.
        """
        limit = self._pool[session].limit
        self.close(session)
        if not self._pool.admit(session, limit, (), f"\0{session}"):
            return False
        self._first[session] = position
        return True

    def close(self, session: str) -> None:
        """End a sequence. Its slots stay cached for sequences that begin with the same tokens."""
        if self._first.pop(session):
            self._pool.truncate(session, 0)  # no other session can use them
        self._pool.release(session)

    def end(self, session: str) -> int:
        """Position after the last slot."""
        return self._first[session] + self._pool[session].length

    def truncate(self, session: str, position: int) -> None:
        """Keep only the slots before `position`."""
        length = max(0, position - self._first[session])
        if length < self._pool[session].length:
            self._pool.truncate(session, length)

    def seal(self, session: str) -> None:
        """Share the whole blocks of a sequence. All of its slots must hold the target's states."""
        self._pool.seal(session)

    def reserve(self, session: str, position: int) -> bool:
        """Take memory for the slots before `position`; False if there is none now."""
        return self._pool.reserve(session, position - self._first[session])

    def warm(self, *, tapped: bool) -> None:
        """Run a pass over several slots and one over one, for which a compiled head compiles. Call this first.

        `tapped` says whether the head will read tapped states, too.
        """
        if not self.open(_TRIAL, 3, [0], "", 0):
            return
        if self.reserve(_TRIAL, 3):
            for count, way in product((2, 1), (True, False) if tapped else (False,)):
                self.run([_TRIAL], self._head.blank(count, tapped=way), [[0] * count], tapped=way)
                self.truncate(_TRIAL, 0)
        self.close(_TRIAL)

    @torch.inference_mode()
    def run(
        self, sessions: Sequence[str], states: Tensor, tokens: Sequence[Sequence[int]], *, tapped: bool = False
    ) -> tuple[Tensor, Tensor]:
        """Append slots to sequences, which have memory for them, in one pass.

        Args:
            sessions: the sequences [B].
            states: states of all new slots, sequence after sequence: fused [T, hidden], or tapped
                [T, taps · target hidden].
            tokens: tokens of the new slots of each sequence [B], T in total.
            tapped: whether the states are tapped.

        Returns:
            The normed states and the states for the next step of the last new slot of each sequence, both [B, hidden].
        """
        slabs = [self._pool[session] for session in sessions]
        counts = [len(each) for each in tokens]
        joined = [token for each in tokens for token in each]
        ends = [self.end(session) for session in sessions]
        positions = [end + step for end, count in zip(ends, counts, strict=True) for step in range(count)]
        batch = PackedBatch(joined, positions, counts, [None] * len(slabs), [])
        with self._attend_in(slabs, batch):
            run = self._head.read if tapped else self._head
            found = run(states, torch.tensor(joined), torch.tensor(positions))
        for slab, own in zip(slabs, tokens, strict=True):
            slab.grow(own)
        last = torch.tensor(counts).cumsum(0) - 1
        return found[0][last], found[1][last]


def head_layout(head: Eagle3Head, dtype: torch.dtype, device: torch.device) -> KvLayout:
    """The layout of the head's keys and values."""
    return KvLayout(1, head.kv_heads, head.head_dim, head.head_dim, dtype, device)
