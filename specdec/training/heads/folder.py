"""The folder of a head: its first weights, from the target's, its checkpoint in the `speculators` format, its card."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import LlamaConfig

from specdec.engine.decoder import Decoder
from specdec.engine.heads.config import HeadConfig
from specdec.engine.heads.eagle3 import Eagle3Head
from specdec.training.heads.rollout import CHAINED, STEPS, HeadAlpha
from specdec.training.step_cost import StepCost
from specdec.training.weights import CausalModel

_ATTENTION, _MLP = ("q_proj", "k_proj", "v_proj", "o_proj"), ("gate_proj", "up_proj", "down_proj")
_NORMS = ("input_layernorm", "hidden_norm", "post_attention_layernorm")
_ROPES = ("default", "linear", "llama3", "yarn")
"""Rotary embeddings that a head may share with its target; with another target it has the default."""
_SPREAD, _FUSED_SPREAD = 0.02, 0.005
"""Standard deviations of weights that the target does not have, and of those that fuse its states."""
_BESIDE = 0.1
"""Size of the first outputs of attention and of the MLP, which are added to the fused state."""
_NORM = 0.35
"""Size of the first last norm relative to the target's, so that the first drafts are uncertain."""


def usual_taps(layers: int) -> tuple[int, ...]:
    """Return a low, a middle and a high layer of a target, as EAGLE-3 does."""
    return min(2, layers - 1), layers // 2, max(0, layers - 3)


def initial_head(target: CausalModel, decoder: Decoder, ids: Tensor, seed: int) -> Eagle3Head:
    """Return an EAGLE-3.1 head that drafts `ids` in float32, on their device.

    Its output rows are the target's and are not trained. The fused state begins as that of the highest tap, and
    attention over embeddings as in the target's first layer. Other weights are small and random.
    """
    config = decoder.config
    heads, rope = config.num_attention_heads, getattr(config, "rope_parameters", None) or {}
    layer = LlamaConfig(
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        num_hidden_layers=1,
        num_attention_heads=heads,
        num_key_value_heads=getattr(config, "num_key_value_heads", None) or heads,
        head_dim=getattr(config, "head_dim", None) or config.hidden_size // heads,
        vocab_size=config.vocab_size,
        max_position_embeddings=config.max_position_embeddings,
        rms_norm_eps=getattr(config, "rms_norm_eps", 1e-5),
        rope_parameters=rope if rope.get("rope_type") in _ROPES else None,
    )
    options = HeadConfig(layer, len(ids), config.hidden_size, decoder.taps, fc_norm=True, norm_output=True)
    with torch.random.fork_rng(), ids.device:
        torch.manual_seed(seed)
        head = Eagle3Head(options, decoder.taps, torch.no_grad()(decoder.embed), ids)
        for weight in head.parameters():
            if weight.ndim == 2:
                nn.init.normal_(weight, std=_FUSED_SPREAD if weight is head.fc.weight else _SPREAD)
    first = target.base_model.layers[0].self_attn
    with torch.no_grad():
        head.lm_head.weight.copy_(target.get_output_embeddings().weight[ids.cpu()])
        head.norm.weight.copy_(_NORM * target.base_model.norm.weight)
        for name in _ATTENTION:
            own = head.get_parameter(f"{name}.weight")
            given: Tensor | None = getattr(getattr(first, name, None), "weight", None)
            if given is not None and len(given) == len(own):
                own[:, : given.shape[1]] = given
        head.fc.weight[:, -config.hidden_size :] += torch.eye(config.hidden_size, device=ids.device)
        head.o_proj.weight *= _BESIDE
        head.down_proj.weight *= _BESIDE
    head.lm_head.requires_grad_(requires_grad=False)
    return head


def export_head(head: Eagle3Head, ids: Tensor, target: str, folder: Path) -> None:
    """Write config.json and model.safetensors, in bfloat16."""
    config, layer, ids = head.config, head.config.layer, ids.cpu()
    weights = {_name(name): weight.to("cpu", torch.bfloat16) for name, weight in head.state_dict().items()}
    weights["d2t"] = ids - torch.arange(len(ids))
    weights["t2d"] = torch.zeros(layer.vocab_size, dtype=torch.bool).index_fill_(0, ids, value=True)
    folder.mkdir(parents=True, exist_ok=True)
    save_file(weights, folder / "model.safetensors")
    (folder / "model.safetensors").chmod(0o644)  # safetensors writes mode 0600, which another user cannot read
    content = {
        "architectures": ["Eagle3DraftModel"],
        "speculators_model_type": "eagle3",
        "draft_vocab_size": len(ids),
        "target_hidden_size": config.target_hidden_size,
        "eagle_aux_hidden_state_layer_ids": list(head.taps),
        "norm_before_residual": config.norm_before_residual,
        "norm_before_fc": config.norm_before_fc,
        "fc_norm": config.fc_norm,
        "norm_output": config.norm_output,
        "transformer_layer_config": {
            "model_type": "llama",
            "hidden_size": layer.hidden_size,
            "intermediate_size": layer.intermediate_size,
            "num_hidden_layers": 1,
            "num_attention_heads": layer.num_attention_heads,
            "num_key_value_heads": layer.num_key_value_heads,
            "head_dim": head.head_dim,
            "vocab_size": layer.vocab_size,
            "max_position_embeddings": layer.max_position_embeddings,
            "rms_norm_eps": layer.rms_norm_eps,
            "rope_parameters": layer.rope_parameters,
            "hidden_act": "silu",
            "attention_bias": False,
            "mlp_bias": False,
        },
        "speculators_config": {
            "algorithm": "eagle3",
            "default_proposal_method": "greedy",
            "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": STEPS}],
            "verifier": {"name_or_path": target},
        },
    }
    (folder / "config.json").write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def _name(name: str) -> str:
    """Return the name of a weight in the format."""
    part = name.partition(".")[0]
    if part in _ATTENTION:
        return f"layers.0.self_attn.{name}"
    if part in _MLP:
        return f"layers.0.mlp.{name}"
    return f"layers.0.{name}" if part in _NORMS else name


@dataclass(frozen=True)
class HeadFacts:
    """Values shown on the card."""

    target: str
    """Name of the target's folder."""
    taps: tuple[int, ...]
    """Layers of the target whose input states the head reads."""
    ids: tuple[int, int]
    """Number of ids that the head drafts, and in the vocabulary."""
    prompts: str
    """Source of the prompts."""
    alphas: Mapping[str, HeadAlpha]
    cost: StepCost
    tokens: int
    """Number of tokens that the target wrote."""
    steps: tuple[int, int]
    """Number of steps, and of texts in each."""
    command: str
    """Command that repeats the training."""


def mean(alphas: Mapping[str, HeadAlpha]) -> HeadAlpha:
    """Return the unweighted mean over the domains."""
    rows = list(alphas.values())
    sampled, greedy = (
        tuple(sum(column) / len(rows) for column in zip(*each, strict=True))
        for each in ([row.sampled for row in rows], [row.greedy for row in rows])
    )
    return HeadAlpha(sampled, greedy, sum(row.coverage for row in rows) / len(rows), sum(row.tokens for row in rows))


def render(facts: HeadFacts) -> str:
    """Return the card as Markdown."""
    layers = ", ".join(map(str, facts.taps))
    steps, texts = facts.steps
    return f"""# A draft head for {facts.target}

An EAGLE-3.1 head (arXiv 2503.01840) in the `speculators` format: one decoder layer over the next token's embedding and
the target's states that enter layers {layers}. It drafts {facts.ids[0]:,} of the target's {facts.ids[1]:,} ids, those
with most of its probability; acceptance stays exact. This page is written by `specdec train head`.

## Measured

| domain | α at temperature 1, drafts 1 to {STEPS} | α at temperature 0, drafts 1 to {STEPS} | coverage | positions |
|---|---|---|---|---|
{_rows(facts.alphas)}

α is that of each draft given that those before it were accepted: at temperature 1 the mean of Σ min(p, q) over the
target's likeliest ids, at temperature 0 the share of drafts that are the target's choice. Both are of the target's own
answers to prompts that the head was not trained on. Coverage is the probability of the draft ids by the target, which
bounds α. c, the duration of a draft relative to the target's pass over one token, is {facts.cost.c:.3f}:
{facts.cost.drafter_ms:.1f} ms and {facts.cost.target_ms:.1f} ms on this machine's CPU, float32, not compiled.

## Training

* **Data**: {facts.tokens:,} tokens that the target wrote, as answers to {facts.prompts}, at temperatures 0, 0.7 and 1.
* **Steps**: {steps:,} of {texts} texts each, the last {1 - CHAINED:.0%} with chains of {STEPS} drafts; forward KL, then
  total variation, which is 1 − α.
* **Reproduce**: `{facts.command}`; it resumes after a kill. Another machine has other rounding, so weights differ
  slightly.
* **Licence**: the target's, whose output rows the head has.
"""


def _rows(alphas: Mapping[str, HeadAlpha]) -> str:
    return "\n".join(
        f"| {name} | {_rates(each.sampled)} | {_rates(each.greedy)} | {each.coverage:.1%} | {each.tokens:,} |"
        for name, each in {**alphas, "all": mean(alphas)}.items()
    )


def _rates(values: tuple[float, ...]) -> str:
    return " ".join(f"{value:.3f}" for value in values)
