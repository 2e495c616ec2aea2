"""Tiny EAGLE-3 heads in each layout of checkpoints, and a plain implementation to compare the product's with."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn.functional import rms_norm, silu

Layout = Literal["speculators", "eagle"]
HIDDEN, QUERY_HEADS, KV_HEADS, HEAD_DIM, INNER, EPS, THETA = 32, 4, 2, 8, 48, 1e-5, 10000.0
"""Sizes of the head, and of the targets that `make_tiny_model` makes."""
LAYER = {
    "model_type": "llama",
    "hidden_size": HIDDEN,
    "intermediate_size": INNER,
    "num_hidden_layers": 1,
    "num_attention_heads": QUERY_HEADS,
    "num_key_value_heads": KV_HEADS,
    "head_dim": HEAD_DIM,
    "rms_norm_eps": EPS,
    "rope_theta": THETA,
    "hidden_act": "silu",
    "attention_bias": False,
    "mlp_bias": False,
}


@dataclass(frozen=True)
class Options:
    """Options of a head, by their names in checkpoints."""

    norm_before_residual: bool = False
    norm_before_fc: bool = False
    fc_norm: bool = False
    norm_output: bool = False


def draft_ids(draft_vocab: int, vocab: int) -> Tensor:
    """Return ids that are spread over the vocabulary, ascending; the first is 0."""
    return torch.arange(draft_vocab) * vocab // draft_vocab


def make_tiny_head(
    folder: Path,
    layout: Layout = "speculators",
    options: Options = Options(),
    *,
    taps: tuple[int, ...] = (0, 1, 1),
    vocab: int = 320,
    draft_vocab: int | None = 100,
    ids: Tensor | None = None,
    seed: int = 0,
    spread: float = 0.3,
    embedding: bool = False,
    head_dim: int = HEAD_DIM,
    config: dict[str, Any] | None = None,
) -> Path:
    """Write a head with random weights and return its folder.

    Args:
        folder: target folder, created if missing.
        layout: names of the weights, and form of the configuration.
        options: options of the head.
        taps: tapped layers.
        vocab: rows of the target's embedding.
        draft_vocab: number of draft ids; None for all.
        ids: draft ids; None for `draft_ids`.
        seed: random seed of the weights.
        spread: standard deviation of the weights.
        embedding: whether the head has an embedding of its own.
        head_dim: elements of an attention head.
        config: further keys of the configuration, or changed ones.
    """
    weights = _weights(options, len(taps), vocab, draft_vocab or vocab, seed, spread, head_dim)
    if not embedding:
        del weights["embed_tokens.weight"]
    if draft_vocab is not None:
        chosen = draft_ids(draft_vocab, vocab) if ids is None else ids
        weights["d2t"] = chosen - torch.arange(len(chosen))
        weights["t2d"] = torch.zeros(vocab, dtype=torch.bool).index_fill_(0, chosen, True)
    flags = {name: getattr(options, name) for name in Options.__dataclass_fields__}
    content: dict[str, Any] = {"draft_vocab_size": draft_vocab or vocab, **flags}
    layer = {**LAYER, "vocab_size": vocab, "head_dim": head_dim}
    if layout == "speculators":
        content |= {
            "architectures": ["Eagle3DraftModel"],
            "speculators_model_type": "eagle3",
            "speculators_config": {"algorithm": "eagle3"},
            "eagle_aux_hidden_state_layer_ids": list(taps),
            "transformer_layer_config": layer,
        }
    else:
        weights = {name.replace("layers.0.", "midlayer."): weight for name, weight in weights.items()}
        own = {"eagle_aux_hidden_state_layer_ids": list(taps), "use_aux_hidden_state": True}
        content |= {**layer, "architectures": ["LlamaForCausalLMEagle3"], "eagle_config": own}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(content | (config or {})))
    save_file({name: weight.contiguous() for name, weight in weights.items()}, folder / "model.safetensors")
    return folder


def _weights(
    options: Options, taps: int, vocab: int, outputs: int, seed: int, spread: float, head_dim: int
) -> dict[str, Tensor]:
    rng = torch.Generator().manual_seed(seed)
    wide = taps * HIDDEN
    shapes = {
        "embed_tokens": (vocab, HIDDEN),
        "fc": (HIDDEN, wide),
        "layers.0.self_attn.q_proj": (QUERY_HEADS * head_dim, 2 * HIDDEN),
        "layers.0.self_attn.k_proj": (KV_HEADS * head_dim, 2 * HIDDEN),
        "layers.0.self_attn.v_proj": (KV_HEADS * head_dim, 2 * HIDDEN),
        "layers.0.self_attn.o_proj": (HIDDEN, QUERY_HEADS * head_dim),
        "layers.0.mlp.gate_proj": (INNER, HIDDEN),
        "layers.0.mlp.up_proj": (INNER, HIDDEN),
        "layers.0.mlp.down_proj": (HIDDEN, INNER),
        "lm_head": (outputs, HIDDEN),
    }
    norms = ("input_layernorm", "hidden_norm", "post_attention_layernorm")
    widths = {**{f"layers.0.{name}": HIDDEN for name in norms}, "norm": HIDDEN}
    widths |= {"input_norm": wide} if options.norm_before_fc else {}
    widths |= {f"fc_norm.{tap}": HIDDEN for tap in range(taps)} if options.fc_norm else {}
    weights = {f"{name}.weight": torch.randn(shape, generator=rng) * spread for name, shape in shapes.items()}
    return weights | {f"{name}.weight": 1 + 0.3 * torch.randn(width, generator=rng) for name, width in widths.items()}


class PlainHead:
    """A head in plain operations over whole sequences, without caches, read from a folder of either layout."""

    def __init__(self, folder: Path, options: Options, embedding: Tensor) -> None:
        """`embedding` [vocab, hidden] is the target's, for a head without one of its own."""
        weights = load_file(folder / "model.safetensors")
        self._weights = {name.replace("midlayer.", "layers.0."): weight for name, weight in weights.items()}
        self._options = options
        self._embedding = self._weights.get("embed_tokens.weight", embedding)

    def drafted(self, tapped: Tensor, tokens: list[int], drafts: list[int]) -> Tensor:
        """Return the logits of each draft position over the target's vocabulary [len(drafts) + 1, vocab].

        Args:
            tapped: tapped states of a prefix of n tokens [n, taps · hidden].
            tokens: the tokens [n + 1].
            drafts: tokens appended after the first draft position.
        """
        fed = self._fused(tapped)
        normed, states = self._layer(fed, tokens[1:])
        found = [normed[-1]]
        for count in range(len(drafts)):
            fed = torch.cat([fed, states[-1:]])
            normed, states = self._layer(fed, [*tokens[1:], *drafts[: count + 1]])
            found.append(normed[-1])
        return self._logits(torch.stack(found))

    def _norm(self, name: str, states: Tensor) -> Tensor:
        weight = self._weights[f"{name}.weight"]
        return rms_norm(states, weight.shape, weight, EPS)

    def _fused(self, tapped: Tensor) -> Tensor:
        if self._options.norm_before_fc:
            tapped = self._norm("input_norm", tapped)
        if self._options.fc_norm:
            parts = tapped.split(HIDDEN, -1)
            tapped = torch.cat([self._norm(f"fc_norm.{tap}", part) for tap, part in enumerate(parts)], -1)
        return tapped @ self._weights["fc.weight"].T

    def _layer(self, fed: Tensor, tokens: list[int]) -> tuple[Tensor, Tensor]:
        weight = lambda name: self._weights[f"layers.0.{name}.weight"].T  # noqa: E731
        count = len(fed)
        normed = self._norm("layers.0.hidden_norm", fed)
        embedded = self._norm("layers.0.input_layernorm", self._embedding[tokens])
        both = torch.cat([embedded, normed], -1)
        split = lambda rows: rows.view(count, -1, HEAD_DIM).transpose(0, 1)  # noqa: E731
        query, key, value = (split(both @ weight(f"self_attn.{name}_proj")) for name in "qkv")
        query, key = _rotated(query), _rotated(key)
        key, value = (each.repeat_interleave(QUERY_HEADS // KV_HEADS, 0) for each in (key, value))
        scores = query @ key.transpose(1, 2) / HEAD_DIM**0.5
        scores = scores.masked_fill(torch.ones(count, count).triu(1).bool(), -torch.inf)
        attended = (scores.softmax(-1) @ value).transpose(0, 1).reshape(count, -1) @ weight("self_attn.o_proj")
        states = attended + (normed if self._options.norm_before_residual else fed)
        inner = self._norm("layers.0.post_attention_layernorm", states)
        gated = silu(inner @ weight("mlp.gate_proj")) * (inner @ weight("mlp.up_proj"))
        states = states + gated @ weight("mlp.down_proj")
        last = self._norm("norm", states)
        return last, last if self._options.norm_output else states

    def _logits(self, normed: Tensor) -> Tensor:
        own = normed @ self._weights["lm_head.weight"].T
        if "d2t" not in self._weights:
            return own
        whole = torch.full((len(own), len(self._weights["t2d"])), -torch.inf)
        for draft, difference in enumerate(self._weights["d2t"].tolist()):
            whole[:, draft + difference] = own[:, draft]
        return whole


def _rotated(rows: Tensor) -> Tensor:
    """Apply rotary embeddings to [heads, T, head width]."""
    half = HEAD_DIM // 2
    frequencies = THETA ** -(torch.arange(half) / half)
    angles = torch.arange(rows.shape[1])[:, None] * frequencies
    first, second = rows[..., :half], rows[..., half:]
    cos, sin = angles.cos(), angles.sin()
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)
