"""An EAGLE-3 head (arXiv 2503.01840): one decoder layer over the next token's embedding and fused states of the target.

Position t pairs the states h_t that the target has after token t with the embedding of token t + 1, and guesses token
t + 2. Further steps read the head's own last state in place of the target's.
"""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.functional import rms_norm, silu
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

from specdec.engine.attention import AttentionRule, attend
from specdec.engine.cpu.compiled_function import CompiledFunction, compiler_options
from specdec.engine.heads.config import HeadConfig


class Norm(nn.Module):
    """RMS norm, computed in float32 as Llama does."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self._eps = eps

    def forward(self, states: Tensor) -> Tensor:
        """[..., width] -> [..., width]"""
        normed = rms_norm(states.float(), states.shape[-1:], None, self._eps)
        return self.weight * normed.to(states.dtype)


def fused(input_norm: Norm | None, fc_norm: nn.ModuleList | None, fc: nn.Module, tapped: Tensor) -> Tensor:
    """Fuse the states of all taps, [..., taps · target hidden], to [..., hidden], by the modules of a head."""
    if input_norm is not None:
        tapped = input_norm(tapped)
    if fc_norm is not None:
        parts = tapped.chunk(len(fc_norm), -1)
        tapped = torch.cat([norm(part) for norm, part in zip(fc_norm, parts, strict=True)], -1)
    states: Tensor = fc(tapped)
    return states


class Eagle3Head(nn.Module):
    """The modules of a head. Attention runs in the step that the caller sets, as the target's does, as layer 0."""

    def __init__(
        self, config: HeadConfig, taps: tuple[int, ...], embed: Callable[[Tensor], Tensor], ids: Tensor | None
    ) -> None:
        """Create a head whose weights are not set.

        Args:
            config: options of the head.
            taps: target layers whose input states it reads.
            embed: embeds ids of the target, [...] -> [..., hidden].
            ids: the target's id of each draft id, int64 [draft ids]; None if the head drafts for all ids.
        """
        super().__init__()
        layer, wide = config.layer, len(taps) * config.target_hidden_size
        width, eps, bias = layer.hidden_size, layer.rms_norm_eps, bool(layer.attention_bias)
        self.config = config
        self.most: int | None = None
        self.taps = taps
        self.embed = embed
        self.ids = ids
        self.head_dim: int = getattr(layer, "head_dim", None) or width // layer.num_attention_heads
        self.input_norm = Norm(wide, eps) if config.norm_before_fc else None
        size = config.target_hidden_size
        self.fc_norm = nn.ModuleList(Norm(size, eps) for _ in taps) if config.fc_norm else None
        self.fc = nn.Linear(wide, width, bias=False)
        self.input_layernorm, self.hidden_norm = Norm(width, eps), Norm(width, eps)
        self.q_proj = nn.Linear(2 * width, layer.num_attention_heads * self.head_dim, bias=bias)
        self.k_proj = nn.Linear(2 * width, layer.num_key_value_heads * self.head_dim, bias=bias)
        self.v_proj = nn.Linear(2 * width, layer.num_key_value_heads * self.head_dim, bias=bias)
        self.o_proj = nn.Linear(layer.num_attention_heads * self.head_dim, width, bias=bias)
        self.post_attention_layernorm = Norm(width, eps)
        self.gate_proj = nn.Linear(width, layer.intermediate_size, bias=False)
        self.up_proj = nn.Linear(width, layer.intermediate_size, bias=False)
        self.down_proj = nn.Linear(layer.intermediate_size, width, bias=False)
        self.norm = Norm(width, eps)
        self.lm_head = nn.Linear(width, layer.vocab_size if ids is None else len(ids), bias=False)
        self._rotary = [LlamaRotaryEmbedding(layer)]  # in a list, since it is not part of a checkpoint

    @property
    def kv_heads(self) -> int:
        """Number of key/value heads."""
        return int(self.config.layer.num_key_value_heads)

    @property
    def scale(self) -> float:
        """Factor on the scores of attention."""
        return float(self.head_dim**-0.5)

    @property
    def fuse(self) -> Callable[[Tensor], Tensor]:
        """Fuses tapped states [..., taps · target hidden] to [..., hidden]; it needs no other part of the head."""
        return partial(fused, self.input_norm, self.fc_norm, self.fc)

    def compile(self) -> None:
        """Compile the head with PyTorch at its next passes: once for one pair, and once for several. Call this last."""
        options = compiler_options(self.norm.weight.device)
        for name in ("forward", "read"):
            setattr(self, name, CompiledFunction(getattr(self, name), options, 0))

    def blank(self, count: int, *, tapped: bool = True) -> Tensor:
        """Return zeros in place of tapped states [count, taps · target hidden], or of fused ones [count, hidden]."""
        wide = len(self.taps) * self.config.target_hidden_size
        return self.norm.weight.new_zeros(count, wide if tapped else self.config.layer.hidden_size)

    def forward(self, states: Tensor, tokens: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Run the layer over a packed row of T pairs.

        Args:
            states: fused states of the target, or the head's own last states [T, hidden].
            tokens: id of the token after each state, int64 [T].
            positions: position of each state in its sequence, int64 [T].

        Returns:
            The normed states [T, hidden], from which `logits` follow, and the states for the next step.
        """
        return self._layer(states, tokens, positions)

    def read(self, tapped: Tensor, tokens: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """`forward` of tapped states [T, taps · target hidden], which are fused first."""
        return self._layer(fused(self.input_norm, self.fc_norm, self.fc, tapped), tokens, positions)

    def _layer(self, states: Tensor, tokens: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        both, residual = self.inputs(states, tokens)
        query, key, value = (each[None] for each in self.projected(both, positions))
        attended = attend(0, query, key, value, AttentionRule(self.scale, None, None, None))
        return self.outputs(residual, attended[0].flatten(-2))

    def inputs(self, states: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Return what attention reads [..., 2 · hidden], and the residual [..., hidden]; arguments as for `forward`."""
        normed = self.hidden_norm(states)
        residual = normed if self.config.norm_before_residual else states
        return torch.cat([self.input_layernorm(self.embed(tokens)), normed], -1), residual

    def projected(self, both: Tensor, positions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries, keys and values [..., heads, T, head width] of what attention reads [..., T, 2 · hidden]."""
        query, key, value = (
            linear(both).unflatten(-1, (-1, self.head_dim)).transpose(-3, -2)
            for linear in (self.q_proj, self.k_proj, self.v_proj)
        )
        cos, sin = (each[0] for each in self._rotary[0](both, positions[None]))
        query, key = apply_rotary_pos_emb(query, key, cos, sin, unsqueeze_dim=0)
        return query, key, value

    def outputs(self, residual: Tensor, attended: Tensor) -> tuple[Tensor, Tensor]:
        """Return what `forward` does, given the residual and the result of attention [..., heads · head width]."""
        states = residual + self.o_proj(attended)
        inner = self.post_attention_layernorm(states)
        states = states + self.down_proj(silu(self.gate_proj(inner)) * self.up_proj(inner))
        normed = self.norm(states)
        return normed, normed if self.config.norm_output else states

    def logits(self, normed: Tensor, vocab_size: int) -> Tensor:
        """Logits over the target's valid ids, float32 [N, vocab_size]; -inf for an id that the head cannot draft."""
        own: Tensor = self.lm_head(normed).float()
        if self.ids is None:
            return own[:, :vocab_size]
        whole = own.new_full((len(own), self.config.layer.vocab_size), -torch.inf)
        return whole.index_copy_(-1, self.ids, own)[:, :vocab_size]
