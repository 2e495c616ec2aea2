"""The engine refuses models it cannot serve exactly at load time, by name and without network access."""

import json
import shutil
import socket
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from specdec.engine import NativeEngine
from specdec.engine.cpu import cpp_library, span
from specdec.engine.cpu import product as host_product
from specdec.engine.cpu.cpp_library import SOURCES
from specdec.engine.cpu.operator import load_attention, open_operator_backend
from specdec.engine.kv.sequence import SequenceKv
from specdec.errors import ModelRefused
from tests.support.kv_backends import KV_BACKENDS, operator
from tests.support.tiny_models import make_tiny_model

pytestmark = pytest.mark.integration

Load = Callable[..., NativeEngine]

MASKED = [name for name in KV_BACKENDS if name != "operator"]
"""KV backends that attend with masks."""


def load_folder(path: Path, **settings: Any) -> NativeEngine:
    defaults: dict[str, Any] = {"dtype": "float32", "device": "cpu", "kv_bytes": 1 << 20, "threads": 1}
    return NativeEngine.load(path, **(defaults | settings))


@pytest.fixture
def folder(tiny: Callable[[str], Path], tmp_path: Path) -> Path:
    """A copy of a valid folder, for a test to break."""
    return Path(shutil.copytree(tiny("llama"), tmp_path / "model"))


def configure(folder: Path, **settings: Any) -> None:
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | settings))


def test_a_load_opens_no_socket(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object) -> None:
        raise AssertionError("the network was asked")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    assert load_folder(folder).facts.name == "model"
    with pytest.raises(ModelRefused, match="does not exist"):
        load_folder(Path("some-org/some-model"))


@pytest.mark.parametrize(
    "settings",
    [
        {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}},
        {"rope_scaling": {"type": "longrope", "short_factor": [1.0], "long_factor": [1.0]}},
        {"rope_parameters": {"full_attention": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}}},
    ],
)
def test_rotary_embeddings_that_couple_sessions_are_refused(folder: Path, settings: dict[str, Any]) -> None:
    configure(folder, **settings)
    with pytest.raises(ModelRefused, match="rotary embeddings change with the other sessions"):
        load_folder(folder)


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"model_type": "nonesuch"}, "the model cannot be loaded"),
        ({"num_hidden_layers": 4}, "the weights lack 9 tensors"),
        ({"hidden_size": 48}, "the model cannot be loaded"),
        ({"max_position_embeddings": None}, "context length is unknown|cannot be loaded"),
    ],
)
def test_a_configuration_that_does_not_fit_is_refused(folder: Path, settings: dict[str, Any], told: str) -> None:
    configure(folder, **settings)
    with pytest.raises(ModelRefused, match=told) as refusal:
        load_folder(folder)
    assert str(folder) in refusal.value.message


@pytest.mark.parametrize(
    ("file", "told"), [("model.safetensors", "the model cannot"), ("tokenizer.json", "the tokenizer cannot")]
)
def test_an_unreadable_file_is_refused(folder: Path, file: str, told: str) -> None:
    (folder / file).write_bytes(b"garbage!" * 4)
    with pytest.raises(ModelRefused, match=told):
        load_folder(folder)


def test_a_tokenizer_beyond_the_models_rows_is_refused(folder: Path, tmp_path: Path) -> None:
    small = make_tiny_model(tmp_path / "small", vocab_size=300)
    shutil.copy(folder / "tokenizer.json", small)
    with pytest.raises(ModelRefused, match="ids up to 319, the model has 300 rows"):
        load_folder(small)


@pytest.mark.parametrize(("setting", "told"), [({"dtype": "int4"}, "float32, bfloat16"), ({"device": "tpu9"}, "tpu9")])
def test_a_dtype_or_device_that_does_not_exist_is_refused(folder: Path, setting: dict[str, str], told: str) -> None:
    with pytest.raises(ModelRefused, match=told):
        load_folder(folder, **setting)


def test_pickles_are_loaded_only_where_they_are_allowed(folder: Path) -> None:
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    with pytest.raises(ModelRefused, match="the weights are pickles"):
        load_folder(folder)
    assert load_folder(folder, allow_pickle=True).facts.name == "model"


def test_a_pickle_is_not_loaded_in_place_of_safetensors_of_another_name(folder: Path) -> None:
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").rename(folder / "adapter.safetensors")
    with pytest.raises(ModelRefused, match="the model cannot be loaded"):
        load_folder(folder)


def test_weights_that_are_no_numbers_are_refused(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    tensors["model.norm.weight"] = torch.full_like(tensors["model.norm.weight"], float("nan"))
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelRefused, match="packed passes differ"):
        load_folder(folder)


@pytest.mark.parametrize(
    ("architecture", "settings", "told"),
    [
        ("falcon", {"num_kv_heads": 2, "new_decoder_architecture": True}, "0 of 2 layers attend"),
        ("bloom", {}, "0 of 2 layers attend"),
        ("llama4_text", {}, "layers of kind chunked_attention"),
        ("qwen3_next", {"num_experts": 4, "num_experts_per_tok": 2}, "layers of kind linear_attention"),
        ("doge", {}, "a mask or bias of its own|attention mask or bias of its own"),
    ],
)
def test_a_model_that_the_engine_cannot_serve_exactly_is_refused(
    tmp_path: Path, architecture: str, settings: dict[str, Any], told: str
) -> None:
    folder = make_tiny_model(tmp_path / architecture, architecture, **settings)
    with pytest.raises(ModelRefused, match=told) as refusal:
        load_folder(folder)
    assert str(folder) in refusal.value.message


@pytest.mark.parametrize("kv_backend", MASKED)
def test_the_self_check_finds_a_mask_that_shows_the_future(
    kv_backend: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = span.tail_mask
    monkeypatch.setattr(span, "tail_mask", lambda *args: torch.zeros_like(honest(*args)))
    with pytest.raises(ModelRefused, match="packed passes differ"):
        load_folder(folder, kv_backend=KV_BACKENDS[kv_backend]())


@pytest.mark.parametrize("kv_backend", KV_BACKENDS)
def test_the_self_check_finds_a_rollback_that_does_not(
    kv_backend: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = SequenceKv.truncate
    monkeypatch.setattr(SequenceKv, "truncate", lambda self, length: honest(self, length - 1))
    with pytest.raises(ModelRefused, match="packed passes differ"):
        load_folder(folder, kv_backend=KV_BACKENDS[kv_backend]())


@pytest.mark.parametrize("kv_backend", MASKED)
def test_the_self_check_finds_a_window_that_is_ignored(
    kv_backend: str, tiny: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = span.tail_mask
    monkeypatch.setattr(span, "tail_mask", lambda count, before, _, like: honest(count, before, None, like))
    with pytest.raises(ModelRefused, match="packed passes differ"):
        load_folder(tiny("mistral"), kv_backend=KV_BACKENDS[kv_backend]())


@pytest.mark.parametrize(
    ("architecture", "honest", "planted"),
    [
        ("llama", ": token + 1);", ": token + 2);"),
        ("llama", "write<T>(call, call.blocks[i / call.heads]", "write<T>(call, call.blocks[0]"),
        ("llama", "attention.attend(call.blocks[i / call.heads]", "attention.attend(call.blocks[0]"),
        ("llama", "head * call_.group + r % call_.group", "head"),
        ("mistral", "{call.window ?", "{false ?"),
        ("mistral", "end - call.window", "end - call.window - 1"),
    ],
    ids=["the future", "writes to another slab", "reads another slab", "another head", "no window", "a wider window"],
)
def test_the_self_check_finds_bugs_in_the_operator(
    tiny: Callable[[str], Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    architecture: str,
    honest: str,
    planted: str,
) -> None:
    operator()
    build_apart(tmp_path, monkeypatch)
    plant(tmp_path, "host_attention.cpp", honest, planted)
    try:
        load_attention(tmp_path)
        with pytest.raises(ModelRefused, match="packed passes differ"):
            load_folder(tiny(architecture), kv_backend=open_operator_backend)
    finally:
        monkeypatch.undo()
        load_attention()  # restores the operator for the following tests


@pytest.mark.parametrize(
    ("honest", "planted"),
    [
        ("widen(weights + k * PANEL", "widen(weights"),
        ("input[r * layer.inputs + k]", "input[k]"),
        ("input + first * layer.inputs", "input"),
        ("for (int64_t panel = 0;", "for (int64_t panel = 1;"),
    ],
    ids=["one input", "another token of a tile", "the first tokens for all tiles", "not the first panel"],
)
def test_the_self_check_finds_bugs_in_products(
    tiny: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, honest: str, planted: str
) -> None:
    _refuse_products(tiny("llama"), tmp_path, monkeypatch, honest, planted)


@pytest.mark.parametrize(
    ("honest", "planted"),
    [("both << 16", "both"), ("both & int32_t(0xffff0000)", "both << 16"), ("both & int32_t(0xffff0000)", "both")],
    ids=["the second vector twice", "the first vector twice", "the first vector's bits in the second"],
)
def test_the_self_check_finds_bugs_in_products_of_bfloat16(
    tiny: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, honest: str, planted: str
) -> None:
    short = tmp_path / "short"
    shutil.copytree(tiny("llama"), short)
    AutoModelForCausalLM.from_pretrained(short, dtype=torch.bfloat16).save_pretrained(short)
    _refuse_products(short, tmp_path, monkeypatch, honest, planted)


def _refuse_products(model: Path, sources: Path, monkeypatch: pytest.MonkeyPatch, honest: str, planted: str) -> None:
    """Check that a bug in the products' source prevents a model from loading."""
    operator()
    build_apart(sources, monkeypatch)
    plant(sources, "host_product.cpp", honest, planted)
    monkeypatch.setattr(host_product, "_library", cache(partial(host_product.load_products, sources)))
    try:
        with pytest.raises(ModelRefused, match="packed passes differ"):
            load_folder(model)
    finally:
        monkeypatch.undo()
        host_product.load_products()  # restores the products for the following tests


def build_apart(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Build into that folder and without optimization, which takes half of the time."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
    monkeypatch.setattr(cpp_library, "_FLAGS", (*cpp_library._FLAGS, "-O0"))


def plant(folder: Path, name: str, honest: str, planted: str) -> None:
    """Copy an operator's sources into a folder, with a bug."""
    (folder / "lanes.h").write_text((SOURCES / "lanes.h").read_text())
    text = (SOURCES / name).read_text()
    assert text.count(honest) == 1
    (folder / name).write_text(text.replace(honest, planted))
