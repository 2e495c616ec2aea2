"""Spec-Bench's questions have the format that other clients read, and a quick run fills every cell."""

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.local import Local, load
from benchmarks.pair import Pair
from benchmarks.questions import CATEGORIES, FILE, Conversation, questions
from benchmarks.run import Ask, Run
from benchmarks.sections import spec
from benchmarks.sections.lab import Lab
from benchmarks.sections.scale import quick
from specdec.errors import ConfigError
from tests.support.tiny_models import make_tiny_model

ROWS = [json.loads(line) for line in FILE.read_text(encoding="utf-8").splitlines()]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    folder = tmp_path_factory.mktemp("pair")
    return Pair(make_tiny_model(folder / "target"), make_tiny_model(folder / "drafter", noise=0.01))


def test_every_category_has_questions_in_the_layout_of_spec_bench() -> None:
    counts = Counter(row["category"] for row in ROWS)
    assert set(counts) == set(CATEGORIES)
    assert all(20 <= count <= 80 for count in counts.values())
    assert [row["question_id"] for row in ROWS] == list(range(1, len(ROWS) + 1))
    assert all(set(row) == {"question_id", "category", "turns"} for row in ROWS)
    assert len({row["turns"][0] for row in ROWS}) == len(ROWS)


def test_only_conversations_have_two_turns() -> None:
    assert all(len(row["turns"]) == 1 + (row["category"] == "multi_turn") for row in ROWS)


def test_a_later_prompt_holds_the_answers_before_it(pair: Pair) -> None:
    conversation = Conversation(pair.target)
    question = questions(1)["multi_turn"][0]
    first = conversation.prompt(question, [])
    second = conversation.prompt(question, [(70, 71, 72)])
    assert second[: len(first)] == first
    assert second[len(first) :][:3] == (70, 71, 72)


def test_acceptance_by_position_counts_only_what_was_judged() -> None:
    run = Run((), 1.0, verdicts=((4, 4), (4, 1), (2, 0), (0, 0)))
    assert spec.by_position([run]) == [(2, 3), (1, 2), (1, 1), (1, 1)]


def test_an_answer_ends_with_the_round_that_has_an_end(pair: Pair) -> None:
    plain = Local(load(pair.target), None)
    whole = plain.generate(Ask((5, 6, 7), 12, gamma=0))
    ended = plain.generate(Ask((5, 6, 7), 12, gamma=0, stop=(whole.tokens[0],)))
    assert len(whole.tokens) == 12
    assert ended.tokens == whole.tokens[:1]
    assert whole.verdicts == ((0, 0),) * 12


def test_a_quick_run_fills_every_cell(pair: Pair) -> None:
    with Lab(quick(pair)) as lab:
        report = spec.measure(lab)
    assert len(report.tables[0].rows) == len(CATEGORIES) * 3 * 4
    assert {row[2] for row in report.tables[0].rows} == {"ngram", "prompt_lookup", "suffix", "model"}
    model = [row for row in report.tables[0].rows if row[2] == "model" and row[1] == "0"]
    assert all(float(row[3]) > 1 for row in model)
    assert [chart.name for chart in report.charts] == ["spec-0", "spec-0.7", "spec-1"]


def test_a_chat_model_that_is_not_here_is_asked_for(
    pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPECDEC_MODELS", str(tmp_path))
    with Lab(replace(quick(pair), chat="smollm2")) as lab, pytest.raises(ConfigError, match="models get smollm2"):
        spec.measure(lab)
