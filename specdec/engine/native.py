"""The native engine: sessions with their own KV, and one packed ragged forward pass over any of them.

Only one thread may call an engine. The last committed token of a session is pending: it has no KV until the next pass.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor

from specdec.engine.batch import Chunk
from specdec.engine.cpu.cpp_library import HostCode
from specdec.engine.cpu.operator import host_backend
from specdec.engine.cpu.wide_passes import WidePasses
from specdec.engine.cuda.backend import PagedBackend
from specdec.engine.decoder import Decoder
from specdec.engine.draft_head import restrict_head
from specdec.engine.kv.backend import OpenKvBackend, forward
from specdec.engine.kv.layout import KvLayout
from specdec.engine.kv.pool import KvMemory, KvPool
from specdec.engine.kv.sequence import SequenceKv
from specdec.engine.loader import ModelFacts, load_decoder
from specdec.engine.model_check import check_model
from specdec.errors import InternalError, ModelRefused


@dataclass(frozen=True, slots=True)
class CheckedModel:
    """A loaded model whose packed passes equal plain passes, without memory for sessions."""

    decoder: Decoder
    facts: ModelFacts
    layout: KvLayout
    kv_backend: OpenKvBackend[Any]


class NativeEngine:
    """A loaded model and the keys and values of its sessions: an `Engine` that also moves KV and computes trees."""

    def __init__(
        self,
        decoder: Decoder,
        facts: ModelFacts,
        layout: KvLayout,
        kv_bytes: int,
        kv_backend: OpenKvBackend[Any] | None = None,
        wide_threads: int | None = None,
    ) -> None:
        """`kv_backend` None selects the backend for the model's device; `wide_threads` as in `load`.

        Raises:
            ModelRefused: `kv_bytes` is less than one page, or more than the device's free memory.
        """
        backend = (kv_backend or kv_backend_for(decoder.device))(decoder, layout, kv_bytes)
        if not backend.store.total:
            page_bytes = backend.store.page_bytes
            raise ModelRefused(f"{facts.name}: kv_bytes of {kv_bytes} hold no page, which takes {page_bytes}")
        backend.warm()
        self._run = WidePasses(backend.run, wide_threads, apart=not decoder.needs_interpreter)
        self._pool: KvPool[SequenceKv] = KvPool(backend.store, facts.fingerprint)
        self.kv_layout = layout
        self.facts = facts
        self.vocab_size = facts.vocab_size
        """Number of valid ids, 0..vocab_size-1, without the padding rows of the model's matrix."""
        self.context_length = facts.context_length
        self.tokenizer_hash = facts.tokenizer_hash
        self.device = decoder.device

    @classmethod
    def load(cls, path: Path, *, kv_bytes: int, wide_threads: int | None = None, **options: Any) -> Self:
        """Load a local model folder and check that its packed passes equal plain passes.

        Args:
            path: a Hugging Face model folder with configuration, weights and tokenizer.
            kv_bytes: budget for the keys and values of all sessions together, in bytes.
            wide_threads: number of threads in passes over at least `wide_passes.WIDE` tokens; None is `threads`.
            options: further arguments of `load_checked`.

        Raises:
            ModelRefused: the folder cannot be served; the message says which and why.
        """
        return cls.of(load_checked(path, **options), kv_bytes, wide_threads)

    @classmethod
    def of(cls, model: CheckedModel, kv_bytes: int, wide_threads: int | None = None) -> Self:
        """Create the engine of a checked model; arguments as for `load`."""
        return cls(model.decoder, model.facts, model.layout, kv_bytes, model.kv_backend, wide_threads)

    @property
    def memory(self) -> KvMemory:
        return self._pool.memory

    def can_ever_admit(self, limit: int) -> bool:
        """Whether a session that may reach `limit` tokens fits an empty engine and the model's context."""
        return 0 < limit <= min(self._pool.capacity, self.context_length)

    def holds(self, sessions: int, limit: int) -> bool:
        """Whether an empty engine has memory for this many sessions of `limit` tokens."""
        return sessions * limit <= self._pool.capacity

    def admit(self, session: str, limit: int, tokens: Sequence[int] = (), domain: str = "") -> bool:
        """Admit a session; the part of `tokens` that other sessions have computed counts in `length` at once."""
        return self.can_ever_admit(limit) and self._pool.admit(session, limit, tokens, domain)

    def reserve(self, session: str, length: int) -> bool:
        return self._pool.reserve(session, length)

    def release(self, session: str) -> None:
        """End the session; its whole blocks stay cached for sessions with the same prefix until memory is needed."""
        self._pool.release(session)

    def length(self, session: str) -> int:
        return self._pool[session].length

    def truncate(self, session: str, length: int) -> None:
        self._pool.truncate(session, length)

    def keep(self, session: str, base_len: int, path: Sequence[int]) -> None:
        """Keep the KV of an accepted path of the tokens after `base_len`, moved together as a chain.

        Args:
            session: a session; its last chunk may have been a tree.
            base_len: length of the session before that chunk.
            path: indices of the kept tokens in that chunk, from a child of the context down.

        Raises:
            InternalError: the session is unknown, or `path` is not a path of its last chunk.
        """
        self._pool.keep(session, base_len, path)

    def held(self, tokens: Sequence[int], domain: str = "") -> int:
        """Number of leading `tokens`, in whole blocks, whose KV a new session would reuse."""
        return self._pool.find_prefix(tokens, domain)[1]

    def export_known(self, start: int, tokens: Sequence[int], domain: str = "") -> Tensor | None:
        """A copy of the KV of tokens[start:] on the host: [layers, heads, len(tokens) - start, key + value width].

        The KV comes from any session of the domain; None if no session has all of `tokens`, which must be whole blocks.
        Only committed tokens are exported, never a draft that could be rejected.
        """
        sequence, length = self._pool.find_prefix(tokens, domain)
        return sequence.read(start, length).cpu() if sequence is not None and start < length == len(tokens) else None

    def restore(self, session: str, start: int, tokens: Sequence[int], kv: Tensor) -> bool:
        """Append tokens with their KV, exported for the same prefix by an engine of equal fingerprint.

        Returns:
            False if there is no memory for the tokens now.

        Raises:
            InternalError: the session's length is not `start`, or `kv` does not have this model's shape and dtype.
        """
        sequence = self._pool[session]
        self.kv_layout.check(kv, len(tokens))
        if sequence.tree is not None or sequence.length != start:
            raise InternalError(f"session {session} has keys and values for {sequence.length} tokens, not {start}")
        if not self._pool.reserve(session, start + len(tokens)):
            return False
        sequence.append(tokens, kv)
        return True

    def forward(self, chunks: Sequence[Chunk]) -> Tensor:
        """Run all chunks in one pass and append their KV; the logits exclude the model's padding columns.

        Raises:
            InternalError: a chunk is malformed, or its session is unknown, over its limit, without memory (see
                `reserve`) or has kept no path of its tree.
        """
        if not chunks:
            return torch.empty(0, self.vocab_size, device=self.device)
        return forward(self._run, self._pool, chunks, self.vocab_size)[0]

    def forward_with_states(self, chunks: Sequence[Chunk]) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Run at least one chunk like `forward`, and also return the states that enter the tapped layers.

        Returns:
            The logits, and for each tapped layer the states of all tokens of all chunks [T, hidden], in the model's
            dtype.
        """
        return forward(self._run, self._pool, chunks, self.vocab_size, states=True)


def load_checked(  # noqa: PLR0913 - one argument for each setting
    path: Path,
    *,
    dtype: str,
    device: str,
    threads: int | None,
    compiled: bool = False,
    attention: HostCode = "auto",
    products: HostCode = "auto",
    allow_pickle: bool = False,
    kv_backend: OpenKvBackend[Any] | None = None,
    taps: Callable[[int], Sequence[int]] | None = None,
) -> CheckedModel:
    """Load a local model folder and check that its packed passes equal plain passes.

    Args:
        path: a Hugging Face model folder with configuration, weights and tokenizer.
        dtype: "float32", "bfloat16" or "float16".
        device: a PyTorch device, or "auto" for the accelerator if there is one.
        threads: number of PyTorch threads in this process; None does not change it.
        compiled: whether to compile the model, which takes seconds to minutes and makes its passes faster.
        attention: implementation of attention on the host.
        products: implementation of products with the weights on the host.
        allow_pickle: whether to load pickles, which can run code of their author, if there are no safetensors.
        kv_backend: opens the memory for keys and values; None selects the backend for the device.
        taps: returns the layers whose input states passes can return, given the number of layers; None is no layer.

    Raises:
        ModelRefused: the folder cannot be served; the message says which and why.
    """
    if threads is not None:
        torch.set_num_threads(threads)
    decoder, facts = load_decoder(path, dtype, device, allow_pickle=allow_pickle)
    if taps is not None:
        decoder.tap(taps(decoder.config.num_hidden_layers))

    def prepare() -> None:
        decoder.pack(products)
        if compiled:
            decoder.compile()

    kv_backend = kv_backend or kv_backend_for(decoder.device, attention)
    layout = check_model(path, decoder, kv_backend, prepare)
    restrict_head(path, decoder)  # after the check, which compares the logits of all ids
    return CheckedModel(decoder, facts, layout, kv_backend)


def kv_backend_for(device: torch.device, attention: HostCode = "auto") -> OpenKvBackend[Any]:
    """The backend for a model on `device`: slabs on the host, pages on every other device.

    Raises:
        ModelRefused: `attention` requires the host's operator, which is not available.
    """
    return host_backend(attention) if device.type == "cpu" else PagedBackend.on(device)
