"""The count of looks sees every way in which a tensor elsewhere makes the host wait, and nothing else."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from specdec.rules.transfer import fetched, moved
from tests.looks import looks

LOOKS: dict[str, Callable[[Tensor], object]] = {
    "item": lambda t: t[0, 0].item(),
    "float": lambda t: float(t.sum()),
    "bool": lambda t: bool((t > 0).all()),
    "int": lambda t: int(t.amax()),
    "tolist": lambda t: t.tolist(),
    "cpu": lambda t: t.cpu(),
    "fetched": lambda t: fetched(t, t),
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
    "moved": lambda t: t[moved(t.device, torch.tensor([1, 0]))[0]],
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


@pytest.mark.parametrize("look", LOOKS.values(), ids=LOOKS)
def test_a_look_is_seen(look: Callable[[Tensor], object], tensor: Tensor, device: torch.device) -> None:
    with looks(device) as seen:
        look(tensor)
    assert len(seen) >= 1


@pytest.mark.parametrize("work", SILENT.values(), ids=SILENT)
def test_work_that_waits_for_nothing_is_not(
    work: Callable[[Tensor], object], tensor: Tensor, device: torch.device
) -> None:
    with looks(device) as seen:
        work(tensor)
    assert seen == []


def test_what_is_moved_comes_back_as_it_was(device: torch.device) -> None:
    sent = [torch.tensor([[1, -2], [3, 2**62]]), torch.tensor([0.1, float("nan")]).double(), torch.zeros(0, 3).long()]
    there = moved(device, *sent)
    assert all(each.device.type == device.type for each in there)
    with looks(device) as seen:
        back = fetched(*there)
    assert len(seen) == 1
    for before, after in zip(sent, back, strict=True):
        assert (after.dtype, after.shape) == (before.dtype, before.shape)
        assert torch.equal(after.view(torch.int64), before.view(torch.int64))
