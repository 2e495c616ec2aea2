"""The counter sees every operation on a device tensor that makes the host wait, and nothing else."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from specdec.sampling.transfer import to_device, to_host
from tests.support.device_syncs import device_syncs

SYNCS: dict[str, Callable[[Tensor], object]] = {
    "item": lambda t: t[0, 0].item(),
    "float": lambda t: float(t.sum()),
    "bool": lambda t: bool((t > 0).all()),
    "int": lambda t: int(t.amax()),
    "tolist": lambda t: t.tolist(),
    "cpu": lambda t: t.cpu(),
    "to_host": lambda t: to_host(t, t),
    "equal": lambda t: torch.equal(t, t),
    "nonzero": lambda t: t.nonzero(),
    "unique": lambda t: t.unique(),
    "mask": lambda t: t[t > 0],
    "mask set": lambda t: torch.zeros_like(t).index_put_((t > 0,), t[0, 0]),
    "list of rows": lambda t: t[[0, 1]],
    "rows on the host": lambda t: t[torch.tensor([0, 1])],
    "tensor made there": lambda t: torch.tensor([1.0, 2.0], device=t.device),
    "copy there": lambda t: torch.ones(2).to(t.device),
    "repeats": lambda t: torch.arange(2, device=t.device).repeat_interleave(torch.ones_like(t[0, :2]).long()),
}
SILENT: dict[str, Callable[[Tensor], object]] = {
    "arithmetic": lambda t: (t * 2 + 1).cumsum(-1).softmax(-1).argmax(-1),
    "to_device": lambda t: t[to_device(t.device, torch.tensor([1, 0]))[0]],
    "filled": lambda t: t.masked_fill(t > 0, 1.0).clamp_min(0.0),
    "scattered": lambda t: torch.zeros_like(t).scatter_(1, t.argmax(1, keepdim=True), 1.0),
    "sliced": lambda t: t[1:, :2].reshape(-1),
    "sorted": lambda t: t.topk(2).values.sort(-1).values,
    "chosen": lambda t: torch.where(t > 0, t, -t),
    "host alone": lambda t: torch.ones(3).nonzero().tolist(),
}


@pytest.fixture
def tensor(device: torch.device) -> Tensor:
    return torch.tensor([[1.0, 2.0, -1.0], [0.0, 3.0, 1.0]], dtype=torch.float64).to(device)


@pytest.mark.parametrize("work", SYNCS.values(), ids=SYNCS)
def test_a_sync_is_seen(work: Callable[[Tensor], object], tensor: Tensor, device: torch.device) -> None:
    with device_syncs(device) as seen:
        work(tensor)
    assert len(seen) >= 1


@pytest.mark.parametrize("work", SILENT.values(), ids=SILENT)
def test_work_that_waits_for_nothing_is_not(
    work: Callable[[Tensor], object], tensor: Tensor, device: torch.device
) -> None:
    with device_syncs(device) as seen:
        work(tensor)
    assert seen == []


def test_what_is_copied_to_the_device_comes_back_unchanged(device: torch.device) -> None:
    sent = [torch.tensor([[1, -2], [3, 2**62]]), torch.tensor([0.1, float("nan")]).double(), torch.zeros(0, 3).long()]
    copies = to_device(device, *sent)
    assert all(each.device.type == device.type for each in copies)
    with device_syncs(device) as seen:
        back = to_host(*copies)
    assert len(seen) == 1
    for before, after in zip(sent, back, strict=True):
        assert (after.dtype, after.shape) == (before.dtype, before.shape)
        assert torch.equal(after.view(torch.int64), before.view(torch.int64))
