"""A device gets the best backend that runs on it. A budget beyond its memory is refused."""

import logging
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from specdec.engine.cpu.slabs import open_host_backend
from specdec.engine.cuda import backend
from specdec.engine.cuda.backend import PagedBackend
from specdec.engine.kv.layout import KvLayout
from specdec.engine.native import kv_backend_for
from specdec.errors import ModelRefused
from tests.support.devices import NO_CUDA

LAYOUT = KvLayout(1, 1, 8, 8, torch.float32, torch.device("cpu"))
DECODER: Any = SimpleNamespace()


def test_the_host_has_slabs_and_every_other_device_pages() -> None:
    assert kv_backend_for(torch.device("cpu"), "torch") is open_host_backend
    assert isinstance(kv_backend_for(torch.device("mps")), PagedBackend)


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine where Triton does not run")
def test_where_triton_does_not_run_that_is_said_and_pages_are_gathered(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        opened = kv_backend_for(torch.device("cuda"))(DECODER, LAYOUT, 1 << 16)
    assert [record.message.partition(",")[0] for record in caplog.records] == ["Triton does not run here"]
    assert opened.store.total == (1 << 16) // (16 * LAYOUT.token_bytes)


@NO_CUDA
def test_on_cuda_triton_runs(caplog: pytest.LogCaptureFixture) -> None:
    kv_backend_for(torch.device("cuda"))
    assert not caplog.records


def test_a_budget_beyond_the_device_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(backend, "PageStore", full)
    with pytest.raises(ModelRefused, match="no room for kv_bytes of 65536"):
        PagedBackend()(DECODER, LAYOUT, 1 << 16)
