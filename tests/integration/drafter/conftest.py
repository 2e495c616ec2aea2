"""A served drafter: tiny Hugging Face model, real worker, real port."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from drafter_service.app import drafter
from drafter_service.config import DrafterSettings
from specdec.engine import NativeEngine
from tests.integration.drafter.reference_drafts import SUPPORT
from tests.integration.drafter.served_drafter import Serve, Service
from tests.support.tiny_models import make_tiny_model


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("drafter") / "tiny", seed=3)


@pytest.fixture(scope="session")
def engine(folder: Path) -> NativeEngine:
    """The engine of the same model, without a service."""
    return NativeEngine.load(folder, dtype="float32", device="cpu", kv_bytes=2**24, threads=1)


@pytest.fixture
def serve(folder: Path, engine: NativeEngine) -> Serve:
    """Return a function that runs a drafter with the given settings."""

    @asynccontextmanager
    async def run(**settings: object) -> AsyncIterator[Service]:
        given = {"model": {"path": folder}, "address": "127.0.0.1:0", "support": SUPPORT, "ahead": 0, "kv_bytes": 2**22}
        async with drafter(DrafterSettings.load(None, given | settings)) as running:
            await running.ready()
            yield Service(running, engine.tokenizer_hash)

    return run


@pytest.fixture
async def service(serve: Serve) -> AsyncIterator[Service]:
    """A drafter that does not draft ahead."""
    async with serve() as service:
        yield service
