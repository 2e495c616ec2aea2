"""Capacity: the search for the maximum of clients, the alternating engine, and the section's report on both."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks import in_turns
from benchmarks.clients import Clients, count_clients
from benchmarks.drafters import load_drafter
from benchmarks.in_turns import InTurns, Place
from benchmarks.local import Local, load
from benchmarks.pair import Pair
from benchmarks.reports import kept
from benchmarks.sections import capacity
from benchmarks.sections.lab import Lab
from benchmarks.sections.scale import quick
from benchmarks.systems.apart import Slice
from specdec.engine import Engine
from tests.support.tiny_models import make_tiny_model
from verifier_service.backends import target_pass
from verifier_service.backends.batch_plan import ScheduledChunk
from verifier_service.backends.target_pass import Result


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    folder = tmp_path_factory.mktemp("pair")
    return Pair(make_tiny_model(folder / "target"), make_tiny_model(folder / "drafter", noise=0.01))


@pytest.mark.parametrize("bounds", [(12, 18), (1, 40), (20, 30), (3, 5), (8, 16)])
def test_the_most_clients_are_found_wherever_the_search_begins(bounds: tuple[int, int]) -> None:
    found = count_clients(lambda count: 160 / count, 10.0, bounds)
    assert found.most == 16
    assert found.slowest[17] < 10.0


def test_a_promise_that_nobody_has_holds_no_client() -> None:
    assert count_clients(lambda count: 1 / count, 10.0, (4, 8)).most == 0


def test_turns_change_no_token_and_keep_to_the_size_of_a_pass(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    passes: list[list[str]] = []

    def verify_batch(engine: Engine, chunks: Sequence[ScheduledChunk]) -> list[Result]:
        passes.append([chunk.row.kv_name for chunk in chunks])
        return target_pass.verify_batch(engine, chunks)

    monkeypatch.setattr(in_turns, "verify_batch", verify_batch)
    asks = [replace(ask, gamma=3) for ask in pair.asks(3, 8, 10)]
    target, drafter = load(pair.target), load_drafter("model", pair.drafter)
    alone = [Local(target, drafter).generate(ask).tokens for ask in asks]
    together = InTurns(target, drafter, 3, most=2).run(asks)
    assert [tuple(each.tokens[len(each.ask.prompt) :]) for each in together] == alone
    assert max(map(len, passes)) == 2
    assert passes[1][0] == "turns-2"


def test_the_section_holds_both_ways_against_the_formula(
    pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    class System:
        """Divides one speed among its clients."""

        def together(self, asks: Any, *drafters: str) -> Slice:
            asked.append(len(asks))
            return Slice(0.0, 0, 0, 0, (60.0 / len(asks),))

    @contextmanager
    def apart(*_: Any) -> Iterator[System]:
        yield System()

    monkeypatch.setattr(kept, "ROOT", tmp_path)
    monkeypatch.setattr(capacity, "apart", apart)
    monkeypatch.setattr(Place, "clients", lambda *_: Clients(10.0, {4: 10.0, 5: 8.0}))
    scale = replace(quick(pair), resume=True)
    with Lab(scale) as lab:
        report = capacity.measure(lab)
        (row,) = report.tables[0].rows
        assert row == ["0.5", "2.5", "20", "10.0", "4", "6", "1.50", "1.50"]
        assert [(each.goal, each.reached) for each in report.figures] == [("≥ 1.35", "yes")]
        assert report.charts[0].curves["apart, predicted"] == [(0.5, 6.0)]
        before = list(asked)
        assert capacity.measure(lab).tables == report.tables
        assert asked == before  # a resumed run uses the kept results


def test_a_process_of_its_own_takes_turns_with_slow_models(pair: Pair) -> None:
    (ask,) = pair.asks(1, 8, 6)
    found = Place(pair, (0.05, 0.001), 2, 1).clients(replace(ask, gamma=2), 0.5, (1, 8))
    assert found.promise < 3 / 0.05
    assert found.slowest[8] < found.slowest[1]
