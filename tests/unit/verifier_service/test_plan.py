"""Decoding sessions always go; prompts share a budget."""

from dataclasses import dataclass

from specdec.params import Mode
from tests.unit.verifier_service.fakes import GREEDY, point_mass
from verifier_service.plan import Prefill, Row, Work, plan


@dataclass(frozen=True)
class Item:
    work: Work


def decoding(name: str) -> Item:
    return Item(Row(name, (1,), 5, Mode.REJECTION, GREEDY, point_mass(1, 2, 3)))


def prompt(name: str, size: int) -> Item:
    return Item(Prefill(name, (1,) * size))


def last_piece(name: str, size: int) -> Item:
    return Item(Row(name, (1,) * (size + 1), 50, Mode.REJECTION, GREEDY))


def names(items: list[Item]) -> list[str]:
    return [item.work.session for item in items]


def test_every_decoding_session_goes_whatever_the_prompts_need() -> None:
    waiting = [prompt("p", 100), *(decoding(f"d{index}") for index in range(50))]
    now, later = plan(waiting, chunk_tokens=10)
    assert len(now) == 51
    assert later == []


def test_prompts_share_the_budget_in_order_of_arrival() -> None:
    now, later = plan([prompt("a", 6), prompt("b", 4), prompt("c", 1), decoding("d")], chunk_tokens=10)
    assert names(now) == ["a", "b", "d"]
    assert names(later) == ["c"]


def test_a_short_prompt_fills_what_a_long_one_leaves() -> None:
    now, later = plan([prompt("a", 8), prompt("b", 8), prompt("c", 2)], chunk_tokens=10)
    assert (names(now), names(later)) == (["a", "c"], ["b"])


def test_the_last_piece_of_a_prompt_counts_without_its_last_token() -> None:
    now, later = plan([last_piece("a", 10), last_piece("b", 1)], chunk_tokens=10)
    assert (names(now), names(later)) == (["a"], ["b"])


def test_the_first_prompt_goes_whatever_its_size() -> None:
    assert names(plan([prompt("a", 99)], chunk_tokens=10)[0]) == ["a"]


def test_nothing_is_planned_of_nothing() -> None:
    assert plan([], chunk_tokens=1) == ([], [])
