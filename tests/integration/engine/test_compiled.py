"""A compiled model computes the same as before, whichever sessions share the pass."""

import shutil
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from specdec.engine import Chunk, NativeEngine
from specdec.engine.decoder import Decoder
from specdec.errors import ModelRefused
from tests.support.devices import NO_CUDA
from tests.support.tiny_models import make_tiny_model

pytestmark = [
    pytest.mark.skipif(shutil.which("c++") is None, reason="there is no C++ compiler"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning:torch"),  # PyTorch's compiler uses deprecated PyTorch calls
    pytest.mark.filterwarnings("ignore:TensorFloat32 tensor cores:UserWarning"),  # hint to use lower precision
    pytest.mark.filterwarnings(r"ignore:\s*Online softmax is disabled:UserWarning"),  # performance hint
    pytest.mark.timeout(900),  # allows a minute of compilation on an idle core
]

PASSES = [
    [Chunk("a", [1, 2, 3, 4, 5, 6, 7], 1), Chunk("b", [9, 8], 2)],
    [Chunk("b", [7], 1)],
    [Chunk("a", [10, 11, 12, 13], 4, [-1, 0, 0, 1]), Chunk("b", [6, 5, 4], 3)],
]


def load(folder: Path, kv_backend: dict[str, Any], **settings: Any) -> NativeEngine:
    return NativeEngine.load(folder, dtype="float32", kv_bytes=1 << 22, threads=1, **kv_backend, **settings)


def logits(engine: NativeEngine) -> torch.Tensor:
    for session in "ab":
        engine.admit(session, 40)
    return torch.cat([engine.forward(chunks) for chunks in PASSES])


@pytest.mark.parametrize(
    ("architecture", "kv_backend"),
    [
        ("gemma2", "slabs"),
        ("gpt_oss", "operator"),
        ("gemma2", "graphs"),
        pytest.param("gemma2", "cuda", marks=NO_CUDA),
        pytest.param("gpt_oss", "cuda", marks=NO_CUDA),
    ],
    indirect=["kv_backend"],
)
def test_compiled_passes_are_those_of_transformers(
    tmp_path: Path, kv_backend: dict[str, Any], architecture: str
) -> None:
    """Two layers, one of each kind that the architecture has: every layer is compiled separately."""
    folder = make_tiny_model(tmp_path, architecture, seed=1, layers=2, padding=7)
    torch.testing.assert_close(logits(load(folder, kv_backend, compiled=True)), logits(load(folder, kv_backend)))


@pytest.mark.parametrize("kv_backend", ["operator"], indirect=True)
@pytest.mark.parametrize(("architecture", "products"), [("qwen2", "operator"), ("phi", "operator"), ("qwen2", "torch")])
def test_compiled_passes_with_joined_layers_are_those_of_transformers(
    tmp_path: Path, kv_backend: dict[str, Any], architecture: str, products: str
) -> None:
    """The layers have biases and the least width that the operator multiplies jointly."""
    wide = {"intermediate_size": 64, "num_key_value_heads": 4}
    folder = make_tiny_model(tmp_path, architecture, seed=1, layers=2, **wide)
    engine = load(folder, kv_backend, compiled=True, products=products)
    torch.testing.assert_close(logits(engine), logits(load(folder, kv_backend, products="torch")))


@pytest.mark.parametrize("kv_backend", ["operator"], indirect=True)
def test_a_pass_in_parts_gives_each_session_what_it_gets_alone(
    tmp_path: Path, kv_backend: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Results match in every bit, as the terms of every token's products have one order."""
    folder = make_tiny_model(tmp_path, "qwen2", seed=1, layers=2, intermediate_size=64, num_key_value_heads=4)
    engine = load(folder, kv_backend, compiled=True, products="operator", wide_threads=2)
    chunks = [Chunk(f"s{at}", [(7 * at + 3 * i) % 300 for i in range(20)], 1 + at) for at in range(5)]
    chunks.append(Chunk("tree", [1, 2, 3, 4], 4, [-1, 0, 0, 1]))
    alone = list[torch.Tensor]()
    for chunk in chunks:
        engine.admit(chunk.session, 40)
        alone.append(engine.forward([chunk]))
        engine.keep(chunk.session, 0, [])
    threads, run = list[int](), Decoder.run

    def seen(decoder: Decoder, ids: torch.Tensor, *rest: Any) -> torch.Tensor:
        threads.append(threading.get_ident())
        return run(decoder, ids, *rest)

    monkeypatch.setattr(Decoder, "run", seen)
    assert torch.equal(engine.forward(chunks), torch.cat(alone))
    assert len(set(threads)) == len(threads) == 2


@pytest.mark.parametrize("kv_backend", ["slabs"], indirect=True)
def test_models_of_one_architecture_are_compiled_apart(tmp_path: Path, kv_backend: dict[str, Any]) -> None:
    """A pass checks only its inputs, so a model must not find code compiled for another."""
    folders = [make_tiny_model(tmp_path / str(layers), "mistral", seed=layers, layers=layers) for layers in (1, 2)]
    compiled = [load(folder, kv_backend, compiled=True) for folder in folders]
    for folder, engine in zip(folders, compiled, strict=True):
        torch.testing.assert_close(logits(engine), logits(load(folder, kv_backend)))


@pytest.mark.parametrize("kv_backend", ["slabs"], indirect=True)
def test_a_model_that_cannot_be_compiled_is_refused(
    tmp_path: Path, kv_backend: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_FORCE_DISABLE_CACHES", "1")
    compiler = torch._inductor.config.patch({"cpp.cxx": ("no-such-compiler",)})
    with compiler, pytest.raises(ModelRefused, match="no-such-compiler"):
        load(make_tiny_model(tmp_path, "mistral", layers=1), kv_backend, compiled=True)
