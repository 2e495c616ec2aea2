"""Served architectures, each shown by a tree of drafts beside a prompt, and architectures that are refused by name."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import AutoModelForCausalLM

from specdec.engine import Chunk, NativeEngine
from specdec.engine.attention import attending
from specdec.engine.cuda.backend import PagedBackend
from specdec.engine.loader import load_decoder
from specdec.engine.model_check import RecordingStep
from specdec.errors import ModelRefused
from tests.support.kv_backends import CallingCapture, triton_kernels
from tests.support.tiny_models import ARCHITECTURES, WINDOW, make_tiny_model

pytestmark = pytest.mark.integration

GROUPED: dict[str, Any] = {"num_key_value_heads": 2}
WINDOWED = GROUPED | {"sliding_window": WINDOW}
EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 32}

MATRIX: dict[str, dict[str, Any]] = {name: {} for name in ARCHITECTURES} | {
    "cohere": GROUPED,
    "cohere2": WINDOWED,
    "deepseek_v3": EXPERTS
    | {
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
    "exaone4": WINDOWED | {"sliding_window_pattern": 2},
    "gemma": GROUPED | {"head_dim": 8},
    "gemma3_text": WINDOWED | {"head_dim": 8},
    "glm": GROUPED | {"head_dim": 8},
    "glm4": GROUPED | {"head_dim": 8},
    "gpt_bigcode": {},
    "gpt_neox": {},
    "granite": GROUPED,
    "ministral": WINDOWED | {"head_dim": 8},
    "mixtral": GROUPED | {"num_local_experts": 4},
    "nemotron": GROUPED,
    "olmo": GROUPED,
    "olmo2": GROUPED,
    "opt": {"ffn_dim": 48, "word_embed_proj_dim": 32},
    "phi3": GROUPED,
    "qwen3": GROUPED | {"head_dim": 8},
    "qwen3_moe": GROUPED | EXPERTS | {"head_dim": 8, "num_experts": 4, "decoder_sparse_step": 1},
    "smollm3": GROUPED,
    "stablelm": GROUPED,
    "starcoder2": WINDOWED,
}

REFUSED: dict[str, dict[str, Any]] = {
    "bloom": {},
    "falcon": {"num_kv_heads": 2, "new_decoder_architecture": True},
    "gpt_neo": {"attention_types": [[["global"], 3]], "num_layers": 3, "num_heads": 4},
    "gptj": {"rotary_dim": 4},
}

GPU = "cuda" if torch.cuda.is_available() else "cpu"
"""Device of Triton's kernels; on the host they run in the interpreter."""

TEXT = [(7 + 31 * i * i) % 320 for i in range(2 * WINDOW + 4)]
TREE = [-1, 0, 0, 1, 2, 4]
NODES = [50, 61, 72, 83, 94, 105]
PATH = [0, 2, 4, 5]


def load(folder: Path, **kv_backend: Any) -> NativeEngine:
    return NativeEngine.load(
        folder, **({"dtype": "float32", "device": "cpu", "kv_bytes": 1 << 23, "threads": 1} | kv_backend)
    )


@pytest.mark.parametrize("architecture", MATRIX)
def test_an_architecture_is_served_as_transformers_runs_it(
    architecture: str, kv_backend: dict[str, Any], tmp_path: Path
) -> None:
    check(architecture, kv_backend, tmp_path)


@pytest.mark.parametrize("architecture", ["gemma2", "gpt_oss", "deepseek_v3"])
def test_an_architecture_is_served_so_by_the_kernels_of_a_gpu(architecture: str, tmp_path: Path) -> None:
    """Two layers, one of each kind that the architecture has: the interpreter takes seconds for each."""
    check(architecture, {"device": GPU, "kv_backend": PagedBackend(triton_kernels(programs=8))}, tmp_path, layers=2)


def test_the_kernels_of_a_gpu_may_be_captured(tmp_path: Path) -> None:
    backend = PagedBackend(triton_kernels(programs=8), CallingCapture)
    check("llama", {"device": GPU, "kv_backend": backend}, tmp_path, layers=1)


def check(architecture: str, kv_backend: dict[str, Any], tmp_path: Path, layers: int = 3) -> None:
    """Check a tree beside a prompt, then keep a path of the tree and roll the prompt back."""
    folder = make_tiny_model(tmp_path, architecture, seed=2, layers=layers, **MATRIX[architecture])
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    engine = load(folder, **kv_backend)
    for name in "ab":
        engine.admit(name, 60)
    engine.forward([Chunk("a", TEXT[:11], 0), Chunk("b", TEXT[:5], 0)])
    got = engine.forward([Chunk("b", TEXT[5:], 1), Chunk("a", TEXT[11:] + NODES, 7, [*range(-1, 10), *shifted(11)])])
    close(got[0], last(model, TEXT))
    close(got[1], last(model, TEXT))
    for lineage in ([0, 1, 3], [0, 2, 4], PATH):
        close(got[2 + lineage[-1]], last(model, TEXT + [NODES[node] for node in lineage]))
    engine.keep("a", 11, [*range(11), *(11 + node for node in PATH)])
    engine.truncate("b", len(TEXT) - 3)
    again = engine.forward([Chunk("a", [9], 1), Chunk("b", [8, 7], 1)])
    close(again[0], last(model, [*TEXT, *(NODES[node] for node in PATH), 9]))
    close(again[1], last(model, [*TEXT[:-3], 8, 7]))


def shifted(pending: int) -> list[int]:
    """Return the tree's parents after `pending` tokens."""
    return [pending + parent for parent in TREE]


@torch.no_grad()
def last(model: Any, tokens: list[int]) -> Tensor:
    logits: Tensor = model(torch.tensor([tokens])).logits[0, -1]
    return logits


def close(got: Tensor, want: Tensor) -> None:
    torch.testing.assert_close(got.cpu(), want, rtol=1e-3, atol=2e-4)


@pytest.mark.parametrize("architecture", MATRIX)
def test_a_pass_reads_nothing_back_so_that_it_can_be_captured(architecture: str, tmp_path: Path) -> None:
    folder = make_tiny_model(tmp_path, architecture, seed=2, layers=3, **MATRIX[architecture])
    decoder, _ = load_decoder(folder, "float32", "cpu")
    row = torch.arange(4)[None]
    with attending(RecordingStep()):
        decoder.run(row, row, 0)
        with ReadsBack() as seen:
            decoder.run(row, row, 0)
    # transformers searches the ids of gpt2 for padding, so gpt2 is served but not captured.
    assert seen.found == ({"aten::item"} if architecture == "gpt2" else set())


class ReadsBack(TorchDispatchMode):
    """Records operations that read numbers of a device on the host."""

    def __init__(self) -> None:
        super().__init__()
        self.found: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        name = func.name().partition(".")[0]
        if name in {"aten::_local_scalar_dense", "aten::item", "aten::nonzero", "aten::equal", "aten::masked_select"}:
            self.found.add(name)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("architecture", REFUSED)
def test_an_architecture_whose_attention_is_its_own_is_refused_by_name(architecture: str, tmp_path: Path) -> None:
    folder = make_tiny_model(tmp_path, architecture, seed=2, layers=3, **REFUSED[architecture])
    with pytest.raises(ModelRefused, match=architecture):
        load(folder)
