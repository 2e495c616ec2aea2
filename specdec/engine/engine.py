"""The engine: sessions with KV of their own, and one packed ragged forward pass over any of them.

One thread owns an engine. The last committed token of a session is pending: it has no KV until the next pass.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Self

import torch
from torch import Tensor

from specdec.engine.batch import Chunk
from specdec.engine.decoder import Decoder
from specdec.engine.facts import Facts
from specdec.engine.forward import forward
from specdec.engine.kv_pool import KvLayout, KvPool
from specdec.engine.loader import load_decoder
from specdec.engine.self_check import prove


class Engine:
    """A loaded model and the KV of its sessions."""

    def __init__(self, decoder: Decoder, facts: Facts, layout: KvLayout, kv_bytes: int) -> None:
        self._decoder = decoder
        self._pool = KvPool(layout, kv_bytes)
        self.name = facts.name
        self.vocab_size = facts.vocab_size
        """Valid ids are 0..vocab_size-1: the tokenizer's, without the padding rows of the model's matrix."""
        self.context_length = facts.context_length
        self.end_token_ids = facts.end_token_ids
        self.tokenizer_hash = facts.tokenizer_hash
        self.fingerprint = facts.fingerprint
        """Hex; two engines with the same one compute the same KV."""
        self.device = decoder.device

    @classmethod
    def load(cls, path: Path, *, dtype: str, device: str, kv_bytes: int, threads: int | None) -> Self:
        """Load a local model folder and prove that packed passes over it equal plain ones.

        Args:
            path: a Hugging Face model folder with configuration, weights and tokenizer.
            dtype: "float32", "bfloat16" or "float16".
            device: a PyTorch device, or "auto" for the accelerator when there is one.
            kv_bytes: budget of all sessions' keys and values together.
            threads: PyTorch's threads in this process; None leaves them.

        Raises:
            ModelRefused: the folder cannot be served; the message says which and why.
        """
        if threads is not None:
            torch.set_num_threads(threads)
        decoder, facts = load_decoder(path, dtype, device)
        return cls(decoder, facts, prove(path, decoder), kv_bytes)

    @property
    def kv_usage(self) -> float:
        """Share of the KV budget that sessions have reserved."""
        return self._pool.usage

    def can_ever_admit(self, capacity: int) -> bool:
        """Whether a session of `capacity` tokens fits an empty engine and the model's context."""
        return 0 < capacity <= min(self._pool.capacity, self.context_length)

    def admit(self, session: str, capacity: int) -> bool:
        """Reserve KV for `capacity` tokens of a new session; False when there is no room now."""
        return self.can_ever_admit(capacity) and self._pool.reserve(session, capacity)

    def release(self, session: str) -> None:
        """Forget the session and free its KV."""
        self._pool.release(session)

    def length(self, session: str) -> int:
        """Tokens of the session that have KV."""
        return self._pool[session].length

    def truncate(self, session: str, length: int) -> None:
        """Keep the first `length` tokens' KV; what was behind is never read again."""
        self._pool[session].truncate(length)

    def keep(self, session: str, base_len: int, path: Sequence[int]) -> None:
        """Of the tokens behind `base_len`, keep the KV of an accepted path; it comes to lie as if it had been a chain.

        Args:
            session: whose last chunk may have been a tree.
            base_len: length before that chunk.
            path: indices of kept tokens in that chunk, from a child of the context down.

        Raises:
            InternalError: an unknown session, or `path` is no path of its last chunk.
        """
        self._pool[session].keep(base_len, path)

    def forward(self, chunks: Sequence[Chunk]) -> Tensor:
        """Run all chunks in one pass and append their KV; on any error no length changes.

        Returns:
            Logits, float32 [Σ chunk.logits, vocab_size], in the order of the chunks: row i of a chunk's rows is the
            distribution after its i-th kept token. The model's padding columns are cut off.

        Raises:
            InternalError: an unknown session, one over its capacity or with a tree to keep a path of, or a malformed
                chunk.
        """
        return forward(self._decoder, self._pool, chunks)
