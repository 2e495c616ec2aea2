"""The engine: sessions with KV of their own, and one packed ragged forward pass over any of them.

One thread owns an engine. The last committed token of a session is pending: it has no KV until the next pass.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor

from specdec.engine.batch import Chunk
from specdec.engine.decoder import Decoder
from specdec.engine.facts import Facts
from specdec.engine.forward import forward
from specdec.engine.kv_backend import Open
from specdec.engine.kv_backends import place_for
from specdec.engine.kv_layout import KvLayout
from specdec.engine.kv_pool import KvMemory, KvPool
from specdec.engine.loader import load_decoder
from specdec.engine.self_check import prove
from specdec.engine.sequence_kv import SequenceKv
from specdec.errors import InternalError, ModelRefused


class NativeEngine:
    """A loaded model and the KV of its sessions."""

    def __init__(
        self, decoder: Decoder, facts: Facts, layout: KvLayout, kv_bytes: int, place: Open[Any] | None = None
    ) -> None:
        """`place` None is the one for the model's device."""
        opened = (place or place_for(decoder.device))(decoder, layout, kv_bytes)
        if not opened.store.total:
            page_bytes = opened.store.page_bytes
            raise ModelRefused(f"{facts.name}: kv_bytes of {kv_bytes} hold no page, which takes {page_bytes}")
        opened.warm()
        self._run = opened.run
        self._pool: KvPool[SequenceKv] = KvPool(opened.store, facts.fingerprint)
        self.kv_layout = layout
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
    def load(  # noqa: PLR0913 - one for each setting, and one for tests
        cls,
        path: Path,
        *,
        dtype: str,
        device: str,
        kv_bytes: int,
        threads: int | None,
        compiled: bool = False,
        place: Open[Any] | None = None,
    ) -> Self:
        """Load a local model folder and prove that packed passes over it equal plain ones.

        Args:
            path: a Hugging Face model folder with configuration, weights and tokenizer.
            dtype: "float32", "bfloat16" or "float16".
            device: a PyTorch device, or "auto" for the accelerator when there is one.
            kv_bytes: budget of all sessions' keys and values together.
            threads: PyTorch's threads in this process; None leaves them.
            compiled: whether to compile the model, which takes from seconds to minutes and makes its passes faster.
            place: where keys and values lie; None is the one for the device.

        Raises:
            ModelRefused: the folder cannot be served; the message says which and why.
        """
        if threads is not None:
            torch.set_num_threads(threads)
        decoder, facts = load_decoder(path, dtype, device)
        if compiled:
            decoder.compile()
        place = place or place_for(decoder.device)
        return cls(decoder, facts, prove(path, decoder, place), kv_bytes, place)

    @property
    def memory(self) -> KvMemory:
        """What the sessions' keys and values take."""
        return self._pool.memory

    def can_ever_admit(self, limit: int) -> bool:
        """Whether a session that may reach `limit` tokens fits an empty engine and the model's context."""
        return 0 < limit <= min(self._pool.capacity, self.context_length)

    def admit(self, session: str, limit: int, tokens: Sequence[int] = (), domain: str = "") -> bool:
        """Let in a session that begins with `tokens` and may reach `limit`; False when there is no room now.

        What other sessions of the same domain, running or ended, have computed of `tokens` it has at once: see
        `length`. The last of `tokens` is always left to compute.
        """
        return self.can_ever_admit(limit) and self._pool.admit(session, limit, tokens, domain)

    def fork(self, session: str, new: str, limit: int) -> bool:
        """Let in a session that has all the tokens of another, may reach `limit`, and grows apart from it.

        In pages no keys and values are copied: both share every page, and where the last one is not full, whichever
        writes to it first copies it to a page of its own. In slabs everything is copied at once.

        Returns:
            False when there is no room now.

        Raises:
            InternalError: an unknown session, one with a tree to keep a path of, or longer than `limit`.
        """
        return self.can_ever_admit(limit) and self._pool.fork(session, new, limit)

    def reserve(self, session: str, length: int) -> bool:
        """Have memory for the first `length` tokens of the session; False when there is none now."""
        return self._pool.reserve(session, length)

    def release(self, session: str) -> None:
        """Forget the session; its whole blocks serve sessions that begin alike until their memory is needed."""
        self._pool.release(session)

    def length(self, session: str) -> int:
        """Tokens of the session that have KV."""
        return self._pool[session].length

    def truncate(self, session: str, length: int) -> None:
        """Keep the first `length` tokens' KV; what was behind is never read again."""
        self._pool.truncate(session, length)

    def keep(self, session: str, base_len: int, path: Sequence[int]) -> None:
        """Of the tokens behind `base_len`, keep the KV of an accepted path; it comes to lie as if it had been a chain.

        Args:
            session: whose last chunk may have been a tree.
            base_len: length before that chunk.
            path: indices of kept tokens in that chunk, from a child of the context down.

        Raises:
            InternalError: an unknown session, or `path` is no path of its last chunk.
        """
        self._pool.keep(session, base_len, path)

    def export(self, session: str, start: int, stop: int) -> Tensor:
        """A copy of the KV of tokens start..stop-1, on the host: [layers, heads, stop - start, key + value width].

        Raises:
            InternalError: the session has no KV for all of them.
        """
        holding = self._pool[session]
        if holding.tree is not None or not 0 <= start < stop <= holding.length:
            raise InternalError(f"session {session} has no keys and values for tokens {start}..{stop - 1}")
        return holding.read(start, stop).cpu()

    def held(self, tokens: Sequence[int], domain: str = "") -> int:
        """How many of `tokens`, from the first, a session let in with them would have at once; whole blocks."""
        return self._pool.holder(tokens, domain)[1]

    def export_known(self, start: int, tokens: Sequence[int], domain: str = "") -> Tensor | None:
        """What `export` gives for tokens[start:], from any session of the domain; None when none has all of `tokens`.

        `tokens` are whole blocks. Only what has stood its verdict is given: no draft that may yet be rejected.
        """
        holder, held = self._pool.holder(tokens, domain)
        return holder.read(start, held).cpu() if holder is not None and start < held == len(tokens) else None

    def restore(self, session: str, start: int, tokens: Sequence[int], kv: Tensor) -> bool:
        """Append tokens and what `export` gave for them, by an engine of the same fingerprint, behind the same prefix.

        Returns:
            False when there is no memory for them now.

        Raises:
            InternalError: the session's length is not `start`, or `kv` is not of this model's shape and type.
        """
        holding = self._pool[session]
        self.kv_layout.check(kv, len(tokens))
        if holding.tree is not None or holding.length != start:
            raise InternalError(f"session {session} has keys and values for {holding.length} tokens, not {start}")
        if not self._pool.reserve(session, start + len(tokens)):
            return False
        holding.append(tokens, kv)
        return True

    def forward(self, chunks: Sequence[Chunk]) -> Tensor:
        """Run all chunks in one pass and append their KV; on any error no length changes.

        Returns:
            Logits, float32 [Σ chunk.logits, vocab_size], in the order of the chunks: row i of a chunk's rows is the
            distribution after its i-th kept token. The model's padding columns are cut off.

        Raises:
            InternalError: an unknown session, one over its limit, without memory (see `reserve`) or with a tree to keep
                a path of, or a malformed chunk.
        """
        if not chunks:
            return torch.empty(0, self.vocab_size, device=self.device)
        return forward(self._run, self._pool, chunks, self.vocab_size)
