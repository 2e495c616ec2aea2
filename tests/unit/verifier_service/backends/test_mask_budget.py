"""Rows with expensive masks take turns; rows without them are in every pass."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from tests.unit.verifier_service.verifier_fakes import make_row
from verifier_service.backends.batch_plan import Row
from verifier_service.backends.mask_budget import MaskBudget


def row(name: str, seconds: float | None = None) -> Row:
    state: Any = None if seconds is None else SimpleNamespace(seconds=seconds)
    return replace(make_row(name, (1, 2, 3)), grammar=state)


def names(rows: list[Row]) -> list[str]:
    return [each.kv_name for each in rows]


def test_a_pass_has_all_cheap_rows_and_expensive_ones_in_turn() -> None:
    budget, rows = MaskBudget(), [row("plain"), row("cheap", 0.001), *(row(name, 0.03) for name in "abc")]
    assert [names(budget.chosen(rows))[2:] for _ in range(3)] == [["a"], ["b"], ["c"]]
    assert names(budget.chosen(rows))[:2] == ["plain", "cheap"]


def test_one_row_may_take_more_than_the_budget_and_rows_within_it_go_together() -> None:
    assert names(MaskBudget().chosen([row("a", 5.0), row("b", 0.01)])) == ["a"]
    assert names(MaskBudget().chosen([row("a", 0.01), row("b", 0.02)])) == ["a", "b"]
    budget = MaskBudget()
    budget.chosen([row("a", 5.0)])
    budget.forget("a")
    assert names(budget.chosen([row("b", 5.0), row("a", 5.0)])) == ["b"]
