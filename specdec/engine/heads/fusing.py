"""A target's engine that keeps the states of sequences, fused for a draft head that runs in a drafter."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor

from specdec.engine.batch import Chunk
from specdec.engine.cpu.compiled_function import CompiledFunction, compiler_options
from specdec.engine.heads.checkpoint import features_name
from specdec.engine.heads.config import read_config
from specdec.engine.heads.headed import load_target_head
from specdec.engine.heads.pending import PendingStates
from specdec.engine.kv.pool import KvMemory
from specdec.engine.native import NativeEngine, load_checked


class FusingEngine:
    """A native engine that keeps the states of the sequences it follows, and fuses those that are taken: an `Engine`.

    Of the states that were not taken, the last are kept.
    """

    def __init__(self, target: NativeEngine, fuse: Callable[[Tensor], Tensor], features: str, most: int) -> None:
        """Create the engine; `most` is the largest number of states that are kept of one sequence."""
        self.target = target
        self.features = features
        """Name of the features, from `features_name`."""
        self._fuse = fuse
        self._most = most
        self._pending: dict[str, PendingStates] = {}
        """States of each followed sequence that were not taken."""
        self.vocab_size = target.vocab_size
        self.context_length = target.context_length
        self.tokenizer_hash = target.tokenizer_hash

    @classmethod
    def load(
        cls, head_folder: Path, path: Path, *, most_bytes: int, kv_bytes: int, wide_threads: int | None, **options: Any
    ) -> Self:
        """Load a target, and of its head what fuses the states.

        Args:
            head_folder: a `speculators` or EAGLE-3 folder.
            path: folder of the target.
            most_bytes: most bytes of the fused states of one sequence.
            kv_bytes: budget for keys and values.
            wide_threads: as in `NativeEngine.load`.
            options: further arguments of `load_checked`.

        Raises:
            ModelRefused: a folder cannot be served, or the head was made for another target.
        """
        config = read_config(head_folder)
        model = load_checked(path, taps=config.tapped, **options)
        head = load_target_head(head_folder, model, **options)
        fuse = head.fuse
        if options.get("compiled"):
            fuse = CompiledFunction(fuse, compiler_options(model.layout.device), 0)
            with torch.inference_mode():
                for count in (1, 2):  # compiles for one state and for several
                    fuse(head.blank(count))
        name = features_name(head_folder, str(options["dtype"]))
        most = max(1, most_bytes // (head.config.layer.hidden_size * model.layout.dtype.itemsize))
        return cls(NativeEngine.of(model, kv_bytes, wide_threads), fuse, name, most)

    @property
    def memory(self) -> KvMemory:
        return self.target.memory

    def can_ever_admit(self, limit: int) -> bool:
        return self.target.can_ever_admit(limit)

    def admit(self, session: str, limit: int, tokens: Sequence[int] = (), domain: str = "") -> bool:
        return self.target.admit(session, limit, tokens, domain)

    def follow(self, session: str, limit: int, tokens: Sequence[int], domain: str = "") -> None:
        """Keep the states of a sequence that was just admitted, from its first computed token on."""
        self._pending[session] = PendingStates(self.target.length(session))

    def reserve(self, session: str, length: int) -> bool:
        return self.target.reserve(session, length)

    def release(self, session: str) -> None:
        self._pending.pop(session, None)
        self.target.release(session)

    def length(self, session: str) -> int:
        return self.target.length(session)

    def truncate(self, session: str, length: int) -> None:
        self.target.truncate(session, length)
        if (pending := self._pending.get(session)) is not None:
            pending.truncate(length)

    def keep(self, session: str, base_len: int, path: Sequence[int]) -> None:
        self.target.keep(session, base_len, path)
        if (pending := self._pending.get(session)) is not None:
            pending.keep(base_len, path)

    def forward(self, chunks: Sequence[Chunk]) -> Tensor:
        """Run all chunks in one pass, as in `Engine`, and keep the states of the followed sequences."""
        if not any(chunk.session in self._pending for chunk in chunks):
            return self.target.forward(chunks)
        logits, layers = self.target.forward_with_states(chunks)
        states = torch.cat(layers, -1)
        for chunk, own in zip(chunks, states.split_with_sizes([len(each.tokens) for each in chunks]), strict=True):
            if (pending := self._pending.get(chunk.session)) is not None:
                # A copy, since a view would keep the states of the whole pass.
                pending.append(chunk.tokens, own if len(chunks) == 1 else own.clone())
                pending.shorten(self._most)
        return logits

    def take(self, session: str) -> tuple[int, Tensor] | None:
        """Remove the states of a followed sequence, all of whose drafts are judged, and return them fused.

        Returns:
            Position of the first token, and the states on the host [n, hidden]; None if there are none.
        """
        pending = self._pending.get(session)
        if not pending:
            return None
        start = pending.start
        with torch.inference_mode():
            return start, self._fuse(pending.take()).cpu()
