"""The host's operator computes and writes the same as its steps in plain PyTorch."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from specdec.engine.attention import AttentionRule, _attend, attending
from specdec.engine.batch import PackedBatch
from specdec.engine.cpu import operator as host_operator
from specdec.engine.cpu.cpp_library import LibraryMissing
from specdec.engine.cpu.operator import OperatorStep, host_backend
from specdec.engine.cpu.slabs import HostStep, Slab, SlabSpan, SlabStore, open_host_backend
from specdec.engine.kv.layout import KvLayout
from specdec.errors import ModelRefused
from specdec.trees.tree import Tree
from tests.support.kv_backends import operator

TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2}
CPU = torch.device("cpu")
LAYOUT = KvLayout(2, 2, 64, 64, torch.float32, CPU)
PLAIN = AttentionRule(None, None, None, None)
FORKED = Tree((-1, 0, 0, 2, 1, 3))
BROAD = Tree((-1, *(node // 2 for node in range(24))))
"""A tree that spans several blocks of tokens."""


@dataclass(frozen=True, slots=True)
class Case:
    """A pass over sessions, each given by its number of earlier tokens, and the number or the tree of new ones."""

    sessions: Sequence[tuple[int, int | Tree]]
    layout: KvLayout = LAYOUT
    group: int = 2
    rule: AttentionRule = PLAIN

    @property
    def batch(self) -> PackedBatch:
        counts = [news if isinstance(news, int) else len(news) for _, news in self.sessions]
        trees = [None if isinstance(news, int) else news for _, news in self.sessions]
        return PackedBatch([0] * sum(counts), [0] * sum(counts), counts, trees, [])

    def slabs(self) -> list[Slab]:
        """Return slabs with random earlier keys and values, and NaN where no session has written."""
        store, made = SlabStore(self.layout, 1 << 40), list[Slab]()
        width = self.layout.key_width + self.layout.value_width
        for (start, _), count in zip(self.sessions, self.batch.counts, strict=True):
            slab = store.open(start + count, b"")
            slab.keys.fill_(torch.nan), slab.values.fill_(torch.nan)
            kv = torch.randn(self.layout.layers, self.layout.heads, start, width)
            slab.append([0] * start, kv.to(self.layout.dtype))
            made.append(slab)
        return made


SHAPES = {
    "one token each": Case([(64, 1), (63, 1), (200, 1), (1, 1)]),
    "nothing before": Case([(0, 1), (0, 5), (0, 20)]),
    "drafts of all lengths": Case([(70, 5), (3, 2), (128, 9), (60, 32), (7, 1)]),
    "prompts beside": Case([(40, 62), (9, 1), (0, 100), (30, 4)]),
    "a whole prompt": Case([(0, 300)]),
    "trees": Case([(5, FORKED), (0, Tree((-1, -1, 0))), (130, 3), (60, BROAD)]),
    "one head": Case([(30, 3), (2, 1)], KvLayout(1, 1, 64, 64, torch.float32, CPU), group=1),
    "many queries of a key": Case([(30, 3), (2, 1)], group=8),
    "values of another width": Case([(30, 3), (90, 1)], KvLayout(2, 3, 48, 80, torch.float32, CPU)),
    "bfloat16": Case([(30, 3), (90, 1), (0, 40)], KvLayout(2, 2, 64, 64, torch.bfloat16, CPU)),
} | {
    f"width {width}": Case([(30, 3), (90, 1)], KvLayout(2, 2, width, width, torch.float32, CPU))
    for width in (1, 7, 20, 72, 100, 256)
}
RULES = {
    "plain": PLAIN,
    "scale": AttentionRule(0.3, None, None, None),
    "window of one": AttentionRule(None, 1, None, None),
    "window": AttentionRule(None, 17, None, None),
    "window over tiles": AttentionRule(None, 70, None, None),
    "softcap": AttentionRule(None, None, 0.7, None),
    "sinks": AttentionRule(None, None, None, torch.empty(0)),
    "all": AttentionRule(0.5, 20, 0.7, torch.empty(0)),
}


Attend = Callable[[Tensor, Tensor, Tensor, int, AttentionRule], Tensor]


def outputs(case: Case, attend: Attend) -> list[Tensor]:
    """Return each layer's output for random queries, keys and values with the strides of a model's."""
    layout, tokens, made = case.layout, sum(case.batch.counts), []
    heads, dtype = layout.heads * case.group, layout.dtype
    rule = case.rule if case.rule.sinks is None else case.rule._replace(sinks=torch.linspace(-2, 2, heads).to(dtype))
    for layer in range(layout.layers):
        torch.manual_seed(layer)
        query, key = (torch.randn(1, tokens, each, layout.key_width, dtype=dtype) for each in (heads, layout.heads))
        value = torch.randn(1, layout.heads, tokens, layout.value_width, dtype=dtype)
        made.append(attend(query.transpose(1, 2), key.transpose(1, 2), value, layer, rule))
    return made


def by_model(query: Tensor, key: Tensor, value: Tensor, layer: int, rule: AttentionRule) -> Tensor:
    """Attend like a compiled model, in the pass of this thread."""
    out: Tensor = torch.ops.specdec.attend(query, key, value, layer, *rule)
    return out


def with_operator(case: Case, slabs: Sequence[Slab], attend: Attend = by_model) -> list[Tensor]:
    operator()
    with OperatorStep(slabs, case.batch).begin():
        return outputs(case, attend)


def with_pytorch(case: Case, slabs: Sequence[Slab]) -> list[Tensor]:
    with attending(
        HostStep([SlabSpan(*each) for each in zip(slabs, case.batch.counts, case.batch.trees, strict=True)])
    ):
        return outputs(case, by_model)


def check(case: Case) -> None:
    torch.manual_seed(7)
    slabs = case.slabs()
    torch.manual_seed(7)
    others = case.slabs()
    got, want = with_operator(case, slabs), with_pytorch(case, others)
    for one, other in zip(got, want, strict=True):
        bound = TOLERANCE[case.layout.dtype]
        torch.testing.assert_close(one, other, rtol=bound, atol=bound)
    for slab, other in zip(slabs, others, strict=True):
        torch.testing.assert_close(slab.keys, other.keys, rtol=0, atol=0, equal_nan=True)
        torch.testing.assert_close(slab.values, other.values, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
@pytest.mark.parametrize("case", SHAPES.values(), ids=SHAPES)
def test_every_rule_over_every_pass_equals_the_step_by_session(case: Case, rule: AttentionRule) -> None:
    check(replace(case, rule=rule))


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
@pytest.mark.parametrize("name", ["prompts beside", "trees", "bfloat16"])
def test_very_long_prompts_have_products_of_their_own_beside_the_others(
    name: str, rule: AttentionRule, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_operator, "_MOST_TOKENS", 32)
    check(replace(SHAPES[name], rule=rule))


@pytest.mark.parametrize("seed", range(20))
def test_random_passes_equal_the_step_by_session(seed: int) -> None:
    def dice(low: int, high: int) -> int:
        return int(torch.randint(low, high, ()))

    torch.manual_seed(seed)
    layout = KvLayout(2, dice(1, 4), 8 * dice(1, 17), 8 * dice(1, 17), torch.float32, CPU)
    sessions = [(dice(0, 300), dice(1, 40)) for _ in range(dice(1, 9))]
    rule = AttentionRule(None, (None, dice(1, 200))[dice(0, 2)], (None, 5.0)[dice(0, 2)], None)
    check(Case(sessions, layout, dice(1, 5), rule))


def test_threads_share_the_work_and_change_nothing() -> None:
    case, results = SHAPES["drafts of all lengths"], []
    threads = torch.get_num_threads()
    try:
        for count in (1, 3):
            torch.set_num_threads(count)
            torch.manual_seed(7)
            results.append(with_operator(case, case.slabs()))
    finally:
        torch.set_num_threads(threads)
    assert all(torch.equal(one, other) for one, other in zip(*results, strict=True))


def test_a_session_without_numbers_leaves_the_others_alone() -> None:
    case = SHAPES["one token each"]
    slabs = case.slabs()
    slabs[1].keys.fill_(torch.nan)
    for out in with_operator(case, slabs):
        assert out.isnan().flatten(2).any(-1).tolist() == [[False, True, False, False]]


@pytest.mark.parametrize("most", [512, 32])
@pytest.mark.parametrize("name", ["prompts beside", "drafts of all lengths"])
def test_a_model_that_is_not_compiled_attends_alike(name: str, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_operator, "_MOST_TOKENS", most)
    case, results = SHAPES[name], []
    for attend in (by_model, _by_step):
        torch.manual_seed(7)
        results.append(with_operator(case, case.slabs(), attend))
    assert all(torch.equal(one, other) for one, other in zip(*results, strict=True))


def _by_step(query: Tensor, key: Tensor, value: Tensor, layer: int, rule: AttentionRule) -> Tensor:
    out, _ = _attend(SimpleNamespace(layer_idx=layer), query, key, value, None, **_options(rule))
    return out


def _options(rule: AttentionRule) -> dict[str, object]:
    return {"scaling": rule.scale, "sliding_window": rule.window, "softcap": rule.softcap, "s_aux": rule.sinks}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_layer_of_another_pass_is_refused_before_memory_is_touched(dtype: torch.dtype) -> None:
    case = SHAPES["one token each"]
    wrong = torch.zeros(1, 2, 3 if dtype == torch.float32 else 4, 64, dtype=dtype)
    with pytest.raises(RuntimeError, match="not of this pass"):
        with_operator(case, case.slabs(), lambda *_: by_model(wrong, wrong, wrong, 0, PLAIN))


def test_after_a_pass_its_thread_attends_as_before() -> None:
    case = SHAPES["one token each"]
    with_operator(case, case.slabs())
    fresh = case.slabs()
    torch.manual_seed(7)
    with_pytorch(case, fresh)
    assert not fresh[0].keys[..., 64, :].isnan().any()


def test_without_a_compiler_passes_loop_over_sessions_and_a_line_says_why(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def missing(*_: object) -> None:
        raise LibraryMissing("there is no C++ compiler")

    monkeypatch.setattr(host_operator, "load_library", missing)
    monkeypatch.setattr(host_operator, "_load", host_operator.load_attention)  # without a cache
    with caplog.at_level(logging.INFO):
        assert host_backend("auto") is open_host_backend
    assert [record.message.partition(": ")[2] for record in caplog.records] == ["there is no C++ compiler"]
    with pytest.raises(ModelRefused, match=r"model.attention is `operator`.*there is no C\+\+ compiler"):
        host_backend("operator")
    assert host_backend("torch") is open_host_backend
