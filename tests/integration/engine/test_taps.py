"""An engine returns the states at its tapped layers, also those after the last norm, for every token of every pass."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from specdec.engine import Chunk, NativeEngine
from specdec.errors import ModelRefused
from tests.support.kv_backends import KV_BACKENDS
from tests.support.tiny_models import make_tiny_model

TAPS = (2, 0, 3, 1)
TEXTS = {name: [(start + 13 * index * index) % 320 for index in range(70)] for name, start in (("a", 1), ("b", 5))}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("tapped"), layers=3)


@pytest.fixture(scope="module")
def expected(folder: Path) -> dict[str, list[Tensor]]:
    """Return the states of each text by transformers, for each tap."""
    model = AutoModelForCausalLM.from_pretrained(folder)
    with torch.inference_mode():
        found = {name: model(torch.tensor([text]), output_hidden_states=True) for name, text in TEXTS.items()}
    return {name: [each.hidden_states[tap][0] for tap in TAPS] for name, each in found.items()}


def check(engine: NativeEngine, expected: dict[str, list[Tensor]]) -> None:
    """Compare the states of passes over one or both texts with the expected ones."""
    for name in TEXTS:
        assert engine.admit(name, 100)
        assert engine.reserve(name, 100)
    for passes in ({"a": 9}, {"b": 40, "a": 31}, {"a": 1, "b": 1}, {"b": 1}):
        starts = {name: engine.length(name) for name in passes}
        parts = [Chunk(name, TEXTS[name][starts[name] : starts[name] + count], 1) for name, count in passes.items()]
        _, states = engine.forward_with_states(parts)
        for own, *layers in zip(states, *expected.values(), strict=True):
            whole = dict(zip(expected, layers, strict=True))
            rows = [whole[name][starts[name] : starts[name] + count] for name, count in passes.items()]
            torch.testing.assert_close(own, torch.cat(rows), rtol=1e-4, atol=1e-4)


def load(folder: Path, wide_threads: int | None = None, **settings: object) -> NativeEngine:
    defaults: dict[str, object] = {"dtype": "float32", "device": "cpu", "threads": 1, "taps": lambda layers: TAPS}
    return NativeEngine.load(folder, kv_bytes=2**20, wide_threads=wide_threads, **(defaults | settings))


@pytest.mark.parametrize("backend", KV_BACKENDS)
def test_states_are_those_of_transformers(backend: str, folder: Path, expected: dict[str, list[Tensor]]) -> None:
    make: Callable[[], object] = KV_BACKENDS[backend]
    check(load(folder, kv_backend=make()), expected)


@pytest.mark.skipif(shutil.which("c++") is None, reason="there is no C++ compiler")
@pytest.mark.filterwarnings("ignore::DeprecationWarning:torch")
@pytest.mark.timeout(600)
def test_compiled_passes_and_parts_of_passes_return_them(folder: Path, expected: dict[str, list[Tensor]]) -> None:
    check(load(folder, wide_threads=2, compiled=True), expected)


def test_the_model_must_have_the_layer(folder: Path) -> None:
    with pytest.raises(ModelRefused, match=r"no layer 4 .* has 3 layers"):
        load(folder, taps=lambda layers: (0, layers + 1))
