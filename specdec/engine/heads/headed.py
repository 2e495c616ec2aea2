"""A target's engine together with a draft head, which reads the states of the passes of the sequences it follows."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor

from specdec.engine.batch import Chunk
from specdec.engine.cpu.product import pack_products
from specdec.engine.decoder import Decoder
from specdec.engine.heads.checkpoint import HeadTarget, load_head
from specdec.engine.heads.config import MedusaConfig, read_config
from specdec.engine.heads.eagle3 import Eagle3Head
from specdec.engine.heads.head_kv import HeadKv, head_layout
from specdec.engine.heads.medusa import MedusaSlots, load_medusa
from specdec.engine.heads.sequences import HeadSequences
from specdec.engine.kv.pool import KvMemory
from specdec.engine.native import CheckedModel, NativeEngine, load_checked


class HeadedEngine:
    """A native engine whose passes also feed a head: an `Engine` beside which the head drafts.

    A sequence that the head does not follow costs nothing.
    """

    def __init__(self, target: NativeEngine, head: HeadSequences) -> None:
        self.target = target
        self.head = head
        self.vocab_size = target.vocab_size
        self.context_length = target.context_length
        self.tokenizer_hash = target.tokenizer_hash

    @classmethod
    def load(cls, head_folder: Path, path: Path, *, kv_bytes: int, wide_threads: int | None, **options: Any) -> Self:
        """Load a target and its head.

        Args:
            head_folder: a `speculators`, EAGLE-3 or Medusa folder.
            path: folder of the target.
            kv_bytes: budget for the keys and values of both, for about as many tokens.
            wide_threads: as in `NativeEngine.load`.
            options: further arguments of `load_checked`.

        Raises:
            ModelRefused: a folder cannot be served, or the head was made for another target.
        """
        config = read_config(head_folder)
        model = load_checked(path, taps=config.tapped, **options)
        if isinstance(config, MedusaConfig):
            return cls._with_medusa(head_folder, config, NativeEngine.of(model, kv_bytes, wide_threads), model, options)
        head = load_target_head(head_folder, model, **options)
        layout = model.layout
        own = head_layout(head, layout.dtype, layout.device).token_bytes
        share = kv_bytes * own // (own + layout.token_bytes)
        name = f"{model.facts.fingerprint}\0{head_folder.resolve()}"
        kv = HeadKv(head, layout.dtype, layout.device, share, options.get("attention", "auto"), name)
        kv.warm(tapped=True)
        target = NativeEngine.of(model, kv_bytes - share, wide_threads)
        return cls(target, HeadSequences(head, kv, target.vocab_size))

    @classmethod
    def _with_medusa(
        cls, folder: Path, config: MedusaConfig, target: NativeEngine, model: CheckedModel, options: Mapping[str, Any]
    ) -> Self:
        parts = target_of(model.decoder, model.layout.dtype, model.decoder.config.num_hidden_layers)
        head = load_medusa(folder, config, parts, allow_pickle=options.get("allow_pickle", False))
        pack_products(head, options.get("products", "auto"))
        return cls(target, HeadSequences(head, MedusaSlots(head), target.vocab_size))

    @property
    def memory(self) -> KvMemory:
        """Use of the memory of both, in bytes."""
        return self.target.memory.joined(self.head.memory)

    def can_ever_admit(self, limit: int) -> bool:
        return self.target.can_ever_admit(limit)

    def admit(self, session: str, limit: int, tokens: Sequence[int] = (), domain: str = "") -> bool:
        return self.target.admit(session, limit, tokens, domain)

    def follow(self, session: str, limit: int, tokens: Sequence[int], domain: str = "") -> None:
        """Have the head follow a sequence that was just admitted, if there is memory. Arguments as for `admit`."""
        self.head.follow(session, limit, tokens, domain, self.target.length(session))

    def reserve(self, session: str, length: int) -> bool:
        return self.target.reserve(session, length)

    def release(self, session: str) -> None:
        self.head.leave(session)
        self.target.release(session)

    def length(self, session: str) -> int:
        return self.target.length(session)

    def truncate(self, session: str, length: int) -> None:
        self.target.truncate(session, length)
        self.head.truncate(session, length)

    def keep(self, session: str, base_len: int, path: Sequence[int]) -> None:
        self.target.keep(session, base_len, path)
        self.head.keep(session, base_len, path)

    def forward(self, chunks: Sequence[Chunk]) -> Tensor:
        """Run all chunks in one pass, as in `Engine`, and keep the states of the sequences that the head follows."""
        followed = [chunk for chunk in chunks if chunk.session in self.head]
        if not followed:
            return self.target.forward(chunks)
        self.head.catch_up({chunk.session: chunk.tokens[0] for chunk in followed})
        logits, layers = self.target.forward_with_states(chunks)
        states = torch.cat(layers, -1)
        for chunk, own in zip(chunks, states.split_with_sizes([len(each.tokens) for each in chunks]), strict=True):
            if chunk.session in self.head:
                # A copy, since a view would keep the states of the whole pass.
                self.head.append(chunk.session, chunk.tokens, own if len(chunks) == 1 else own.clone())
        return logits


def load_target_head(folder: Path, model: CheckedModel, **options: Any) -> Eagle3Head:
    """Load the head of a loaded target, packed like the target; `options` are those of `load_checked`.

    Raises:
        ModelRefused: as for `load_head`.
    """
    target = target_of(model.decoder, model.layout.dtype, model.decoder.config.num_hidden_layers)
    head = load_head(folder, target, allow_pickle=options.get("allow_pickle", False))
    pack_products(head, options.get("products", "auto"))
    if options.get("compiled"):
        head.compile()
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
