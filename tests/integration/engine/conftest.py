"""Tiny model folders, each written once for all engine tests."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from specdec.engine import NativeEngine
from tests.support.devices import NO_CUDA
from tests.support.kv_backends import KV_BACKENDS
from tests.support.tiny_models import make_tiny_model

Load = Callable[..., NativeEngine]


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return the folder of a three-layer model of an architecture, its matrices padded beyond the tokenizer."""
    root, made = tmp_path_factory.mktemp("tiny"), {}

    def folder(architecture: str = "llama") -> Path:
        if architecture not in made:
            made[architecture] = make_tiny_model(root / architecture, architecture, seed=1, layers=3, padding=7)
        return made[architecture]

    return folder


@pytest.fixture(params=[*KV_BACKENDS, pytest.param("cuda", marks=NO_CUDA)])
def kv_backend(request: pytest.FixtureRequest) -> dict[str, Any]:
    """Engine settings that select the KV backend."""
    if request.param == "cuda":
        return {"device": "cuda"}
    return {"device": "cpu", "kv_backend": KV_BACKENDS[request.param]()}


@pytest.fixture
def load(tiny: Callable[[str], Path], kv_backend: dict[str, Any]) -> Load:
    """Return a function that loads an engine from a tiny folder."""

    def engine(architecture: str = "llama", **settings: Any) -> NativeEngine:
        defaults: dict[str, Any] = {"dtype": "float32", "kv_bytes": 1 << 22, "threads": 1}
        return NativeEngine.load(tiny(architecture), **(defaults | kv_backend | settings))

    return engine
