"""Variants of decoders as tiny random models, and the table of docs/engines.md with the result of loading each.

python -m tests.integration.engine.variants    # rewrites the table
"""

import re
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from specdec.engine import NativeEngine
from specdec.errors import ModelRefused
from tests.support.tiny_models import WINDOW, make_tiny_model

PAGE = Path(__file__).parents[3] / "docs" / "engines.md"
BEGIN, END = "<!-- variants: begin -->\n", "<!-- variants: end -->\n"


@dataclass(frozen=True)
class Variant:
    """One property in which decoders differ, with an architecture that has it."""

    what: str
    architecture: str
    settings: dict[str, Any] = field(default_factory=dict)


def rope(kind: str, **settings: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 1e4, **settings}}


GROUPED: dict[str, Any] = {"num_key_value_heads": 2}
EXPERTS = GROUPED | {"num_experts_per_tok": 2, "moe_intermediate_size": 32}
LLAMA3 = {"factor": 8.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0, "original_max_position_embeddings": 32}

VARIANTS = (
    Variant("output tied to the embedding", "llama", {"tie_word_embeddings": True}),
    Variant("an output of its own", "llama", {"tie_word_embeddings": False}),
    Variant("biases in attention and MLP", "llama", {"attention_bias": True, "mlp_bias": True}),
    Variant("biased queries, keys and values", "qwen2"),
    Variant("normed queries and keys", "qwen3"),
    Variant("one head of keys and values", "llama", {"num_key_value_heads": 1}),
    Variant("heads wider than their share", "llama", {"head_dim": 32}),
    Variant("learned positions", "gpt2"),
    Variant("rotation of a part of each head", "phi"),
    Variant("rotation of a part, in pairs", "glm", GROUPED | {"head_dim": 8}),
    Variant("layers without positions", "smollm3", GROUPED),
    Variant("rotary scaling `linear`", "llama", rope("linear", factor=2.0)),
    Variant("rotary scaling `llama3`", "llama", rope("llama3", **LLAMA3)),
    Variant("rotary scaling `yarn`", "llama", rope("yarn", factor=4.0, original_max_position_embeddings=64)),
    Variant("rotary scaling `dynamic`", "llama", rope("dynamic", factor=2.0)),
    Variant(
        "rotary scaling `longrope`",
        "phi3",
        rope("longrope", short_factor=[1.0] * 4, long_factor=[2.0] * 4, original_max_position_embeddings=64),
    ),
    Variant("sliding window in every layer", "mistral"),
    Variant("sliding window in every other layer", "gemma3_text", GROUPED | {"sliding_window": WINDOW, "head_dim": 8}),
    Variant("soft caps of scores and logits", "gemma2"),
    Variant("attention sinks", "gpt_oss"),
    Variant("chunked attention", "llama4_text", GROUPED | {"num_local_experts": 2, "attention_chunk_size": 8}),
    Variant("experts", "mixtral", GROUPED | {"num_local_experts": 4}),
    Variant("experts of their own width", "qwen3_moe", EXPERTS | {"head_dim": 8, "num_experts": 4}),
    Variant(
        "latent keys and values, shared experts",
        "deepseek_v3",
        {
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 32,
            "n_routed_experts": 4,
            "n_group": 1,
            "topk_group": 1,
            "q_lora_rank": 16,
            "kv_lora_rank": 16,
            "qk_rope_head_dim": 8,
            "qk_nope_head_dim": 16,
            "v_head_dim": 16,
            "first_k_dense_replace": 1,
        },
    ),
    Variant("linear biases of distance (ALiBi)", "bloom"),
    Variant("attention of the model's own code", "gptj", {"rotary_dim": 4}),
    Variant("state spaces instead of attention", "mamba"),
    Variant("convolutions among the layers", "lfm2", GROUPED | {"layer_types": ["conv", "full_attention"]}),
)


def outcome(variant: Variant) -> str:
    """Return whether the model is served with the logits of transformers, or the reason why it is refused."""
    with tempfile.TemporaryDirectory() as folder:
        path = make_tiny_model(Path(folder), variant.architecture, seed=2, **variant.settings)
        try:
            NativeEngine.load(path, dtype="float32", device="cpu", kv_bytes=1 << 20, threads=1)
        except ModelRefused as refusal:
            return f"refused: {refusal.message.removeprefix(f'{path}: ')}"
    return "served"


def row(variant: Variant) -> str:
    """Return a variant's row of the table."""
    return f"| {variant.what} | `{variant.architecture}` | {outcome(variant)} |\n"


def rows_of_page() -> list[str]:
    """Return the rows on the page."""
    text = PAGE.read_text(encoding="utf-8")
    return re.findall(r"^\|.*\|\n", text[text.index(BEGIN) : text.index(END)], flags=re.MULTILINE)[2:]


def main() -> None:
    """Write the table into the page."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    _, _, after = rest.partition(END)
    table = "| variant | for example | at load time |\n|---|---|---|\n" + "".join(map(row, VARIANTS))
    PAGE.write_text(before + BEGIN + table + END + after, encoding="utf-8")


if __name__ == "__main__":
    main()
