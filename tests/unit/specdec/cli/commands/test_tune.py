"""`specdec tune` recommends the fastest settings, and no drafts if drafts do not pay."""

from pathlib import Path

import pytest
import yaml

from specdec.cli.commands.tune import (
    PLAIN,
    Candidate,
    Trial,
    advice,
    chart_values,
    config_files,
    flags,
    read_prompts,
    recommended,
    report,
    tune,
)
from specdec.client.events import FinishedEvent, GenerationResult, PromptRequest, StartedEvent
from specdec.errors import ConfigError
from specdec.rules.speculation import Mode
from specdec.sampling.params import FinishReason


class Server:
    """A server with one speed for each draft length, and twice the speed in one mode."""

    def __init__(self, speeds: dict[int | None, float], fast: Mode | None = None) -> None:
        self._speeds, self._fast = speeds, fast

    def __call__(self, request: PromptRequest) -> GenerationResult:
        off = request.mode is Mode.OFF or request.gamma == 0
        assert request.gamma is None or isinstance(request.gamma, int)
        speed = 10.0 if off else self._speeds[request.gamma] * (2 if request.mode is self._fast else 1)
        finished = FinishedEvent(FinishReason.LENGTH, 1, 101, 0 if off else 50, 0 if off else 40, 50, {})
        return GenerationResult(StartedEvent("g", "demo", 0), (), finished, 0.1, 0.1 + 100 / speed)


GREEDY = [PromptRequest(text, 101, 0.0, seed=1) for text in "abc"]
SAMPLED = [PromptRequest(text, 101, seed=1) for text in "abc"]


def test_the_fastest_length_is_recommended() -> None:
    trials = tune(Server({None: 15, 2: 12, 4: 30, 8: 20}, fast=Mode.OFF), GREEDY, [""], str)
    assert [trial.candidate.gamma for trial in trials] == [4, 8, None, 2]
    assert recommended(trials) == Candidate(4)
    assert report(trials)["trials"][0]["speedup"] == pytest.approx(3.0)
    assert "3.00 times (3.00 to 3.00, 3 prompts)" in next(advice(trials))


def test_other_modes_are_tried_for_the_fastest_length_of_sampled_output() -> None:
    trials = tune(Server({None: 15, 2: 12, 4: 30, 8: 20}, fast=Mode.BLOCK), SAMPLED, [""], str)
    assert len(trials) == 6
    assert recommended(trials) == Candidate(4, Mode.BLOCK)


def test_every_source_is_tried() -> None:
    trials = tune(Server({None: 15, 2: 12, 4: 30, 8: 20}), GREEDY, ["suffix", "model"], str)
    assert {trial.candidate.drafter for trial in trials} == {"suffix", "model"}


def test_no_drafts_are_recommended_where_they_do_not_pay() -> None:
    trials = tune(Server({None: 9.5, 2: 9, 4: 8, 8: 7}, fast=Mode.OFF), GREEDY, [""], str)
    assert recommended(trials) is PLAIN
    assert "do not pay" in next(advice(trials))
    assert flags(PLAIN) == "--gamma 0"


def test_a_length_that_pays_for_all_prompts_is_recommended() -> None:
    trials = [Trial(Candidate(8), (0.85, 2.58), True), Trial(Candidate(2), (1.35, 1.57), True)]
    assert recommended(trials) == Candidate(2)
    assert "Speed over that without drafts: 1.46 times (1.35 to 1.57, 2 prompts)" in next(advice(trials))


def test_a_recommendation_is_given_as_flags_files_and_values() -> None:
    candidate = Candidate(4, Mode.BLOCK, "suffix")
    assert flags(candidate) == "--gamma 4 --mode block --default-drafter suffix"
    files = {"verifier": {"gamma": 4, "drafter": "suffix"}, "gateway": {"mode": "block"}}
    assert yaml.safe_load(config_files(candidate)) == files
    values = {"speculation": {"gamma": 4, "mode": "block", "drafter": "suffix"}}
    assert yaml.safe_load(chart_values(candidate)) == values


def test_prompts_are_lines_or_objects(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\n\ntwo\n")
    (tmp_path / "a.jsonl").write_text('{"prompt": "one\\ntwo"}\n')
    assert read_prompts(tmp_path / "a.txt") == ["one", "two"]
    assert read_prompts(tmp_path / "a.jsonl") == ["one\ntwo"]


@pytest.mark.parametrize(("name", "text"), [("a.txt", "\n"), ("a.jsonl", "one"), ("a.jsonl", '{"text": "x"}')])
def test_a_file_without_prompts_is_refused_by_name(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(ConfigError, match=name):
        read_prompts(tmp_path / name)


def test_a_file_that_is_not_there_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="absent"):
        read_prompts(tmp_path / "absent")
