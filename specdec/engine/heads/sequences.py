"""The sequences that a head follows: their states that it has not read, and drafts that follow from them."""

import time
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Protocol

import torch
from torch import Tensor

from specdec.engine.heads.pending import PendingStates
from specdec.engine.kv.pool import KvMemory
from specdec.errors import ModelRefused

_TRIAL, _TRIAL_STEPS, _TRIALS = "trial", 6, 4
"""Name of the sequence that measures the head, most drafts of a trial, and number of trials."""
_MOST_BYTES = 2**25
"""Most bytes of unread states of all sequences, beyond which those with many are read although nothing drafts."""
_MANY = 64
"""Number of unread states of a sequence that are worth a pass of their own."""
_IDLE = 32
"""Passes without a draft after which the next draft is probably a trial, so that only the last states are read for it.
A trial of many sequences would otherwise read all of their prompts."""


class Head(Protocol):
    """The modules of a head."""

    most: int | None
    """Most drafts in a row; None if there is no limit."""

    def blank(self, count: int) -> Tensor:
        """Return zeros in place of tapped states [count, taps · hidden]."""

    def logits(self, normed: Tensor, vocab_size: int) -> Tensor:
        """Logits of what `HeadSlots.run` returns, float32 [B, vocab_size]; -inf for an id that is never drafted."""


class HeadSlots(Protocol):
    """State of a head's sequences, and its passes over them; `HeadKv` describes the methods."""

    @property
    def memory(self) -> KvMemory: ...
    def open(self, session: str, limit: int, tokens: Sequence[int], domain: str, known: int) -> bool: ...
    def close(self, session: str) -> None: ...
    def end(self, session: str) -> int: ...
    def truncate(self, session: str, position: int) -> None: ...
    def seal(self, session: str) -> None: ...
    def reserve(self, session: str, position: int) -> bool: ...
    def restart(self, session: str, position: int) -> bool: ...
    def run(
        self, sessions: Sequence[str], states: Tensor, tokens: Sequence[Sequence[int]], *, tapped: bool = False
    ) -> tuple[Tensor, Tensor]: ...


class HeadSequences:
    """A head and the sequences of a target that it follows, for any engine of the target.

    The states of a sequence are kept until a draft is requested, or until they take much memory. So a sequence that
    decodes plainly costs the head almost nothing.
    """

    def __init__(self, head: Head, kv: HeadSlots, vocab_size: int) -> None:
        """`vocab_size` is the number of valid ids of the target."""
        self.most = head.most
        """Most drafts in a row; None if there is no limit."""
        self._head = head
        self._kv = kv
        self._vocab_size = vocab_size
        self._pending: dict[str, PendingStates] = {}
        """Unread states of each followed sequence."""
        self._idle = 0
        """Number of passes since the last draft."""
        self._states = torch.empty(0)
        """State that each drafting sequence feeds its next step with [B, hidden]."""

    @property
    def memory(self) -> KvMemory:
        """Use of the head's memory, in bytes."""
        return self._kv.memory

    def __contains__(self, session: object) -> bool:
        return session in self._pending

    def follow(self, session: str, limit: int, tokens: Sequence[int], domain: str, known: int) -> None:
        """Follow a sequence, if there is memory. Arguments as for `HeadKv.open`."""
        if self._kv.open(session, limit, tokens, domain, known):
            self._pending[session] = PendingStates(known)

    def leave(self, session: str) -> None:
        """Stop following a sequence, if the head does."""
        if self._pending.pop(session, None) is not None:
            self._kv.close(session)

    def end(self, session: str) -> int:
        """Position after the newest state of a followed sequence."""
        return self._pending[session].end

    def append(self, session: str, tokens: Sequence[int], states: Tensor) -> None:
        """Append the states [n, taps · hidden] of the next n tokens of a followed sequence."""
        self._pending[session].append(tokens, states)

    def truncate(self, session: str, length: int) -> None:
        """Drop the states from position `length` on, if the head follows the sequence."""
        if (pending := self._pending.get(session)) is not None:
            pending.truncate(length)
            self._kv.truncate(session, length)
            if self._kv.end(session) != pending.start:  # the head has seen no token before that length
                self.leave(session)

    def keep(self, session: str, base_len: int, path: Sequence[int]) -> None:
        """Keep one path of a tree, if the head follows the sequence; as `PendingStates.keep`."""
        if (pending := self._pending.get(session)) is not None:
            pending.keep(base_len, path)

    def catch_up(self, following: Mapping[str, int]) -> None:
        """Count a pass, and read the states of the sequences that have many unread ones, if all take much memory.

        While nothing drafts, only the last states of these sequences are kept, and none are read.

        Args:
            following: the token after the last state of each followed sequence, which has no draft to be judged.
        """
        self._idle += 1
        if sum(pending.bytes for pending in self._pending.values()) < _MOST_BYTES:
            return
        full = [session for session in following if self.unread(session) >= _MANY]
        if self._idle > _IDLE:
            for session in full:
                self._shorten(session)
            return
        ready = [session for session in full if self.can_draft(session, 1)]
        if ready:
            self._read(ready, [following[session] for session in ready])

    def unread(self, session: str) -> int:
        """Number of states that the head must read before it drafts for a sequence; 0 if it does not follow it."""
        return len(self._pending[session]) if session in self._pending else 0

    def can_draft(self, session: str, gamma: int) -> bool:
        """Whether the head has new states of a sequence, and memory to draft γ tokens after its next token."""
        if self._idle >= _IDLE and self.unread(session) >= _MANY:
            self._shorten(session)
        pending = self._pending.get(session)
        if not pending:
            return False
        if not self._kv.reserve(session, pending.end + gamma - 1):
            self.leave(session)
            return False
        return True

    def begin(self, sessions: Sequence[str], tokens: Sequence[int]) -> Tensor:
        """Read the unread states of sequences that `can_draft`; `finish` must follow after the last `extend`.

        Args:
            sessions: the sequences [B].
            tokens: the token after the last state of each sequence, which the target has not computed [B].

        Returns:
            Logits of the first draft of each, float32 [B, vocab_size]; -inf for an id that the head cannot draft.
        """
        self._idle = 0
        return self._next(*self._read(sessions, tokens))

    def extend(self, sessions: Sequence[str], rows: Sequence[int], tokens: Sequence[int]) -> Tensor:
        """Append a draft to sequences.

        Args:
            sessions: the sequences [B].
            rows: row of each sequence in the logits before [B].
            tokens: the draft of each sequence [B].

        Returns:
            Logits of the next draft of each, float32 [B, vocab_size].
        """
        states = self._states[list(rows)]
        return self._next(*self._kv.run(sessions, states, [[token] for token in tokens]))

    def finish(self, sessions: Sequence[str]) -> None:
        """Drop the slots of drafts, which hold states of the head, not of the target."""
        for session in sessions:
            if session in self._pending:
                self._kv.truncate(session, self._pending[session].start)

    def step_seconds(self) -> float:
        """Measure the median duration of a step of one sequence, in seconds. Call this before the first sequence.

        Raises:
            ModelRefused: there is no memory for a sequence.
        """
        steps = min(_TRIAL_STEPS, self.most or _TRIAL_STEPS)
        self.follow(_TRIAL, _TRIALS + steps, [0], "", 0)
        seconds = [self._timed_step(steps) for _ in range(_TRIALS)]
        self.leave(_TRIAL)
        return median(seconds[1:])

    def _timed_step(self, steps: int) -> float:
        """Return the mean duration of the steps of one draft."""
        if _TRIAL in self:
            self.append(_TRIAL, [0], self._head.blank(1))
        if not self.can_draft(_TRIAL, steps):
            raise ModelRefused("kv_bytes are too few for a trial of the head")
        started = time.perf_counter()
        self.begin([_TRIAL], [0])
        for _ in range(steps - 1):
            self.extend([_TRIAL], [0], [0])
        self.finish([_TRIAL])
        return (time.perf_counter() - started) / steps

    def _shorten(self, session: str) -> None:
        """Drop all but the last states of a sequence. The head then sees no earlier tokens."""
        pending = self._pending[session]
        pending.shorten(_MANY - 1)
        if not self._kv.restart(session, pending.start):
            del self._pending[session]

    def _next(self, normed: Tensor, states: Tensor) -> Tensor:
        self._states = states
        with torch.inference_mode():
            logits = self._head.logits(normed, self._vocab_size)
        return logits.clone()  # a tensor from inference mode could not be written later

    def _read(self, sessions: Sequence[str], tokens: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Append a slot for each unread state of the sequences, given the token after the last; as `HeadKv.run`."""
        own = [self._pending[session] for session in sessions]
        following = [[*pending.tokens[1:], token] for pending, token in zip(own, tokens, strict=True)]
        for session in sessions:
            self._kv.seal(session)
        taken = [pending.take() for pending in own]
        return self._kv.run(sessions, taken[0] if len(taken) == 1 else torch.cat(taken), following, tapped=True)
