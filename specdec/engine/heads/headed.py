"""A target's engine together with a draft head, which reads the states of the passes of the sequences it follows."""

import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, Self

import torch
from torch import Tensor

from specdec.engine.batch import Chunk
from specdec.engine.cpu.product import pack_products
from specdec.engine.decoder import Decoder
from specdec.engine.heads.checkpoint import HeadTarget, load_head
from specdec.engine.heads.config import read_config
from specdec.engine.heads.eagle3 import Eagle3Head
from specdec.engine.heads.head_kv import HeadKv, head_layout
from specdec.engine.heads.pending import PendingStates
from specdec.engine.kv.pool import KvMemory
from specdec.engine.native import CheckedModel, NativeEngine, load_checked
from specdec.errors import ModelRefused

_TRIAL, _TRIAL_STEPS = "trial", 8
"""Name and largest length of the sequence that measures the head."""
_MOST_PENDING = 64
"""Most unread states of a sequence before its next pass. Reading many in one pass costs little for each."""


class HeadedEngine:
    """A native engine whose passes also feed a head: an `Engine` that drafts for the sequences the head follows.

    The states of a sequence are kept until a draft is requested, or until there are many. So a sequence that decodes
    plainly costs the head almost nothing, and a sequence that the head does not follow nothing at all.
    """

    def __init__(self, target: NativeEngine, head: Eagle3Head, kv: HeadKv) -> None:
        self.target = target
        self._head = head
        self._kv = kv
        self._pending: dict[str, PendingStates] = {}
        """Unread states of each followed sequence."""
        self._states = torch.empty(0)
        """State that each drafting sequence feeds its next step with [B, hidden]."""
        self.vocab_size = target.vocab_size
        self.context_length = target.context_length
        self.tokenizer_hash = target.tokenizer_hash

    @classmethod
    def load(cls, head_folder: Path, path: Path, *, kv_bytes: int, wide_threads: int | None, **options: Any) -> Self:
        """Load a target and its head.

        Args:
            head_folder: a `speculators` or EAGLE-3 folder.
            path: folder of the target.
            kv_bytes: budget for the keys and values of both, for about as many tokens.
            wide_threads: as in `NativeEngine.load`.
            options: further arguments of `load_checked`.

        Raises:
            ModelRefused: a folder cannot be served, or the head was made for another target.
        """
        config = read_config(head_folder)
        model = load_checked(path, taps=config.tapped, **options)
        head = load_target_head(head_folder, model, **options)
        layout = model.layout
        own = head_layout(head, layout.dtype, layout.device).token_bytes
        share = kv_bytes * own // (own + layout.token_bytes)
        name = f"{model.facts.fingerprint}\0{head_folder.resolve()}"
        kv = HeadKv(head, layout.dtype, layout.device, share, options.get("attention", "auto"), name)
        return cls(NativeEngine.of(model, kv_bytes - share, wide_threads), head, kv)

    @property
    def memory(self) -> KvMemory:
        """Use of the memory of both, in bytes."""
        target, head = self.target.memory, self._kv.memory
        return KvMemory(target.budget + head.budget, target.live + head.live, target.cached + head.cached)

    def can_ever_admit(self, limit: int) -> bool:
        return self.target.can_ever_admit(limit)

    def admit(self, session: str, limit: int, tokens: Sequence[int] = (), domain: str = "") -> bool:
        return self.target.admit(session, limit, tokens, domain)

    def follow(self, session: str, limit: int, tokens: Sequence[int], domain: str = "") -> None:
        """Have the head follow a sequence that was just admitted, if there is memory. Arguments as for `admit`."""
        known = self.target.length(session)
        if self._kv.open(session, limit, tokens, domain, known):
            self._pending[session] = PendingStates(known)

    def reserve(self, session: str, length: int) -> bool:
        return self.target.reserve(session, length)

    def release(self, session: str) -> None:
        self._leave(session)
        self.target.release(session)

    def length(self, session: str) -> int:
        return self.target.length(session)

    def truncate(self, session: str, length: int) -> None:
        self.target.truncate(session, length)
        if (pending := self._pending.get(session)) is not None:
            pending.truncate(length)
            self._kv.truncate(session, length)
            if self._kv.end(session) != pending.start:  # the head has seen no token before that length
                self._leave(session)

    def keep(self, session: str, base_len: int, path: Sequence[int]) -> None:
        self.target.keep(session, base_len, path)
        if (pending := self._pending.get(session)) is not None:
            pending.keep(base_len, path)

    def forward(self, chunks: Sequence[Chunk]) -> Tensor:
        """Run all chunks in one pass, as in `Engine`, and keep the states of the sequences that the head follows."""
        followed = [chunk for chunk in chunks if chunk.session in self._pending]
        if not followed:
            return self.target.forward(chunks)
        self._catch_up([chunk for chunk in followed if len(self._pending[chunk.session]) >= _MOST_PENDING])
        logits, layers = self.target.forward_with_states(chunks)
        states = torch.cat(layers, -1)
        for chunk, own in zip(chunks, states.split_with_sizes([len(each.tokens) for each in chunks]), strict=True):
            if (pending := self._pending.get(chunk.session)) is not None:
                # A copy, since a view would keep the states of the whole pass.
                pending.append(chunk.tokens, own if len(chunks) == 1 else own.clone())
        return logits

    def can_draft(self, session: str, gamma: int) -> bool:
        """Whether the head has new states of a sequence, and memory to draft γ tokens after its next token."""
        pending = self._pending.get(session)
        if not pending:
            return False
        if not self._kv.reserve(session, pending.end + gamma - 1):
            self._leave(session)
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
        return self._next(sessions, *self._read(sessions, tokens))

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
        return self._next(sessions, *self._kv.run(sessions, states, [[token] for token in tokens]))

    def finish(self, sessions: Sequence[str]) -> None:
        """Drop the slots of drafts, which hold states of the head, not of the target."""
        for session in sessions:
            if session in self._pending:
                self._kv.truncate(session, self._pending[session].start)

    def step_seconds(self) -> float:
        """Measure the median duration of a step of one sequence, in seconds. Call this before the first admission."""
        tokens = [0, 0]
        self.admit(_TRIAL, _TRIAL_STEPS, tokens)
        self.follow(_TRIAL, _TRIAL_STEPS, tokens)
        if _TRIAL not in self._pending or not self.reserve(_TRIAL, 1):
            raise ModelRefused("kv_bytes are too few for a trial of the head")
        self.forward([Chunk(_TRIAL, [0], 0)])
        self.can_draft(_TRIAL, _TRIAL_STEPS - 1)
        self.begin([_TRIAL], [0])
        seconds = [self._timed_step() for _ in range(_TRIAL_STEPS - 2)]
        self.finish([_TRIAL])
        self.release(_TRIAL)
        return median(seconds)

    def _timed_step(self) -> float:
        started = time.perf_counter()
        self.extend([_TRIAL], [0], [0])
        return time.perf_counter() - started

    def _next(self, sessions: Sequence[str], normed: Tensor, states: Tensor) -> Tensor:
        self._states = states
        with torch.inference_mode():
            logits = self._head.logits(normed, self.vocab_size)
        return logits.clone()  # a tensor from inference mode could not be written later

    def _read(self, sessions: Sequence[str], tokens: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Append a slot for each unread state of the sequences, given the token after the last; as `HeadKv.run`."""
        own = [self._pending[session] for session in sessions]
        following = [[*pending.tokens[1:], token] for pending, token in zip(own, tokens, strict=True)]
        for session in sessions:
            self._kv.seal(session)
        with torch.inference_mode():
            fused = self._head.fuse(torch.cat([pending.take() for pending in own]))
        return self._kv.run(sessions, fused, following)

    def _catch_up(self, chunks: Sequence[Chunk]) -> None:
        """Read the unread states of sequences whose next tokens these are. All their drafts have been judged."""
        ready = [chunk for chunk in chunks if self.can_draft(chunk.session, 1)]
        if ready:
            self._read([chunk.session for chunk in ready], [chunk.tokens[0] for chunk in ready])

    def _leave(self, session: str) -> None:
        """Stop following a sequence, if the head does."""
        if self._pending.pop(session, None) is not None:
            self._kv.close(session)


def load_target_head(folder: Path, model: CheckedModel, **options: Any) -> Eagle3Head:
    """Load the head of a loaded target, packed like the target; `options` are those of `load_checked`.

    Raises:
        ModelRefused: as for `load_head`.
    """
    target = target_of(model.decoder, model.layout.dtype, model.decoder.config.num_hidden_layers)
    head = load_head(folder, target, allow_pickle=options.get("allow_pickle", False))
    pack_products(head, options.get("products", "auto"))
    return head


def _output(decoder: Decoder) -> Tensor:
    """Weights of the output layer, which are unpacked at each access."""
    weight: Tensor = decoder.head.weight.detach()
    return weight


def target_of(decoder: Decoder, dtype: torch.dtype, layers: int) -> HeadTarget:
    """Return the parts that a head shares with a target of so many layers, which `decoder` need not have."""
    config = decoder.config
    return HeadTarget(
        rows=config.vocab_size,
        hidden=config.hidden_size,
        layers=layers,
        dtype=dtype,
        device=decoder.device,
        embed=decoder.embed,
        output=partial(_output, decoder),
    )
