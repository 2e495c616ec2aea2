"""The host's operator multiplies like PyTorch, and its result for a token depends on that token alone."""

import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import fx, nn
from torch.nn.functional import linear

from specdec.engine.cpu import product as host_product
from specdec.engine.cpu.cpp_library import LibraryMissing
from specdec.engine.cpu.joined_layers import LayerPart, multiply_once
from specdec.engine.cpu.product import (
    MULTIPLY,
    PackedEmbedding,
    PackedLinear,
    load_products,
    pack_products,
)
from specdec.errors import ModelRefused


@pytest.fixture
def _library() -> None:
    try:
        load_products()
    except LibraryMissing as missing:
        pytest.skip(str(missing))


@pytest.fixture
def _two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


class Tied(nn.Module):
    """A model of two layers whose embedding and head share their weights."""

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.embedding = nn.Embedding(70, 24, dtype=dtype)
        self.layer = nn.Linear(24, 24, dtype=dtype)
        self.head = nn.Linear(24, 70, bias=False, dtype=dtype)
        self.head.weight = self.embedding.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.head(self.layer(self.embedding(ids)))
        return out


@pytest.mark.usefixtures("_library")
@pytest.mark.parametrize("short", [False, True])
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize(("inputs", "outputs"), [(1, 1), (24, 7), (40, 64), (257, 100)])
def test_products_are_those_of_pytorch(inputs: int, outputs: int, biased: bool, short: bool) -> None:
    weight, bias = torch.randn(outputs, inputs), torch.randn(outputs) if biased else None
    weight[0, 0] = 0.1  # not representable in bfloat16
    weight = weight.bfloat16().float() if short else weight
    layer = PackedLinear(weight, bias)
    assert layer.panels.dtype is (torch.bfloat16 if short else torch.float32)
    assert torch.equal(layer.weight, weight)
    for tokens in (0, 1, 2, 5, 11, 12, 13, 24, 31, 80):
        given = torch.randn(1, tokens, inputs)
        torch.testing.assert_close(layer(given), linear(given, weight, bias), rtol=1e-5, atol=1e-4)


@pytest.mark.usefixtures("_library")
def test_numbers_that_do_not_lie_side_by_side_are_read_as_they_are() -> None:
    weight, given = torch.randn(40, 24), torch.randn(1, 24, 9).transpose(1, 2)
    torch.testing.assert_close(PackedLinear(weight)(given), linear(given, weight), rtol=1e-5, atol=1e-5)


@pytest.mark.usefixtures("_library")
@pytest.mark.parametrize("given", [torch.randn(2, 23), torch.randn(2, 24).double(), torch.randn(2, 24).bfloat16()])
def test_numbers_of_another_width_or_type_are_refused(given: torch.Tensor) -> None:
    with pytest.raises(RuntimeError, match=r"weights for 24|scalar type Float"):
        PackedLinear(torch.randn(40, 24))(given)


@pytest.mark.usefixtures("_library")
def test_weights_that_fit_bfloat16_give_the_same_bits_as_in_float32() -> None:
    weight, given = torch.randn(100, 257).bfloat16().float(), torch.randn(31, 257)
    beside = torch.cat([weight, torch.full((1, 257), 0.1)])  # not representable in bfloat16, so all stay float32
    assert torch.equal(PackedLinear(weight)(given), PackedLinear(beside)(given)[:, :100])


@pytest.mark.usefixtures("_library", "_two_threads")
def test_what_a_token_gets_depends_neither_on_the_others_nor_on_threads() -> None:
    layer, given = PackedLinear(torch.randn(200, 96), torch.randn(200)), torch.randn(60, 96)
    whole = layer(given)
    torch.set_num_threads(1)
    for count in range(1, 30):
        assert torch.equal(layer(given[count : 2 * count]), whole[count : 2 * count])


@pytest.mark.usefixtures("_library")
@pytest.mark.parametrize("short", [False, True])
def test_a_packed_model_keeps_each_weight_once(short: bool) -> None:
    model, ids = Tied().requires_grad_(False), torch.tensor([[0, 69, 33, 33]])
    model = model.bfloat16().float() if short else model
    expected = model(ids)
    pack_products(model, "operator")
    assert isinstance(model.embedding, PackedEmbedding)
    assert not list(model.parameters())
    torch.testing.assert_close(model(ids), expected, rtol=1e-5, atol=1e-5)
    packed = {each.data_ptr(): each.numel() for each in model.buffers()}
    bias, columns = 32, 2 * 32
    assert sum(packed.values()) <= (-(-70 // 32) + 1) * 32 * 24 + bias + columns


class Attention(nn.Module):
    """Layers named like projections of one input. `alike` says whether the inputs are the same here."""

    def __init__(self, *, alike: bool, biased: bool = False, values: int = 32) -> None:
        super().__init__()
        self.q_proj = nn.Linear(24, 64, bias=biased)
        self.k_proj = nn.Linear(24, 32, bias=biased)
        self.v_proj = nn.Linear(24, values, bias=biased)
        self._alike = alike

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """Return the concatenated outputs."""
        others = states if self._alike else states + 1.0
        return torch.cat([self.q_proj(states), self.k_proj(others), self.v_proj(states)], dim=-1)


@pytest.mark.usefixtures("_library")
@pytest.mark.parametrize("short", [False, True])
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize(("alike", "products"), [(True, 1), (False, 2)])
def test_a_compiled_pass_multiplies_once_with_layers_of_one_input(
    alike: bool, products: int, biased: bool, short: bool
) -> None:
    model, states = Attention(alike=alike, biased=biased).requires_grad_(False), torch.randn(1, 5, 24)
    model = model.bfloat16().float() if short else model
    expected, weight = model(states), model.k_proj.weight
    pack_products(model, "operator")
    assert all(isinstance(each, LayerPart) for each in (model.q_proj, model.k_proj, model.v_proj))
    assert torch.equal(model.k_proj.weight, weight)
    torch.testing.assert_close(model(states), expected, rtol=1e-5, atol=1e-5)
    counted = list[int]()

    def compiler(graph: fx.GraphModule, _inputs: Any) -> Callable[..., Any]:
        multiply_once(graph, MULTIPLY)
        counted.append(sum(node.target is torch.ops.specdec.multiply for node in graph.graph.nodes))
        return graph.forward

    torch.testing.assert_close(torch.compile(model, backend=compiler)(states), expected, rtol=1e-5, atol=1e-5)
    assert counted == [products]
    numbers = {each.data_ptr(): each.numel() for each in model.buffers()}
    assert sum(numbers.values()) == 128 * 24 + host_product._panel_width() + 128 * biased  # and numbered columns


@pytest.mark.usefixtures("_library")
def test_layers_that_end_within_a_panel_are_packed_apart() -> None:
    model, states = Attention(alike=True, values=33).requires_grad_(False), torch.randn(1, 5, 24)
    expected = model(states)
    pack_products(model, "operator")
    assert isinstance(model.v_proj, PackedLinear)
    torch.testing.assert_close(model(states), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.usefixtures("_library")
def test_layers_of_which_one_fits_bfloat16_are_packed_apart() -> None:
    model = Attention(alike=True).requires_grad_(False)
    model.k_proj = model.k_proj.bfloat16().float()
    pack_products(model, "operator")
    assert isinstance(model.k_proj, PackedLinear)
    assert model.k_proj.panels.dtype is torch.bfloat16


@pytest.mark.usefixtures("_library")
def test_weights_of_another_type_are_left_to_pytorch() -> None:
    model = Tied(torch.bfloat16)
    pack_products(model, "operator")
    assert all(type(each) in (Tied, nn.Embedding, nn.Linear) for each in model.modules())


def test_without_a_compiler_products_are_pytorchs_and_one_line_says_why(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def missing() -> None:
        raise LibraryMissing("there is no C++ compiler")

    monkeypatch.setattr(host_product, "_library", missing)
    model = Tied()
    with caplog.at_level(logging.INFO):
        pack_products(model, "auto")
    assert [record.message.partition(": ")[2] for record in caplog.records] == ["there is no C++ compiler"]
    pack_products(model, "torch")
    assert type(model.layer) is nn.Linear
    with pytest.raises(ModelRefused, match=r"model.products is `operator`.*there is no C\+\+ compiler"):
        pack_products(model, "operator")
