"""`specdec advise` from given numbers: counts, formula, and honest results."""

import json

import pytest

from specdec.cli.app import status_of
from specdec.cli.commands import advise
from specdec.cli.exit_codes import ExitCode
from specdec.serving.telemetry.snapshot import MetricsSnapshot

Capture = pytest.CaptureFixture[str]

EXAMPLE = [
    *("advise", "14190", "--alpha", "0.7", "--gamma", "4", "--draft-ms", "3", "--verify-ms", "25"),
    *("--draft-batch", "32", "--verify-batch", "32", "--round-trip-ms", "2", "--draft-busy", "1", "--verify-busy", "1"),
]
READING = MetricsSnapshot(
    verifiers=4,
    drafters=2,
    alpha=0.6,
    gamma=3.6,
    draft_step=0.004,
    draft_batch=20.0,
    verify_pass=0.03,
    verify_batch=30.0,
    plain_pass=0.02,
    round_trip=0.001,
)


def test_it_says_the_counts_and_where_they_come_from(capsys: Capture) -> None:
    assert status_of(EXAMPLE) == ExitCode.OK
    said = capsys.readouterr().out
    assert "verifiers        4 for 14190 tokens/s" in said
    assert "drafters         2" in said
    assert "N_d/N_v = γ·c·(B_v/B_d)·(ρ_v/ρ_d) = 0.48" in said
    assert "Drafting pays: 6 replicas in all, against 12 verifiers with plain decoding." in said


def test_it_says_the_papers_bounds(capsys: Capture) -> None:
    assert status_of([*EXAMPLE, "--draft-operations", "0.1"]) == ExitCode.OK
    said = capsys.readouterr().out
    assert "α > t_d/t_p: (1 + α) / (1 + t_d/t_p) = 1.52" in said
    assert "(γ·ĉ + γ + 1) / E = 1.95 times plain decoding, ĉ 0.1 (Theorem 3.11)" in said
    assert status_of([*EXAMPLE, "--draft-ms", "30"]) == ExitCode.OK
    assert "α ≤ t_d/t_p: no γ need gain" in capsys.readouterr().out
    assert status_of([*EXAMPLE, "--json"]) == ExitCode.OK
    found = json.loads(capsys.readouterr().out)
    assert (found["least_speedup"], found["operations"]) == (pytest.approx(1.7 / 1.12), pytest.approx(5 / 2.7731))


def test_it_says_when_drafting_does_not_pay(capsys: Capture) -> None:
    assert status_of([*EXAMPLE, "--draft-ms", "30"]) == ExitCode.OK
    said = capsys.readouterr().out
    assert "Drafting does not pay here" in said
    assert "drafters         0" in said


def test_it_says_when_drafting_costs_more_than_it_saves(capsys: Capture) -> None:
    assert status_of([*EXAMPLE, "--draft-batch", "1"]) == ExitCode.OK
    assert "Drafting buys speed, not hardware" in capsys.readouterr().out


def test_it_says_what_drafters_apart_gain_and_lose(capsys: Capture) -> None:
    assert status_of(EXAMPLE) == ExitCode.OK
    said = capsys.readouterr().out
    assert "up to 1 + γ·t_d/t_v = 1.48 times the clients" in said
    assert "(t_v + γ·t_d) / (t_v + γ·t_d + R) = 0.95 of their speed" in said
    assert "while a drafter costs under 1.00 verifiers." in said


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--drafter-cost", "0.1"], "1.41 times the clients: apart wins where verifiers are full"),
        (["--drafter-cost", "1.5"], "0.86 times the clients: co-location would win, full or not."),
        (["--drafter-cost", "1.5", "--draft-batch", "64"], "1.09 times the clients: apart wins"),
    ],
)
def test_the_cost_of_a_drafter_decides_where_to_draft(more: list[str], said: str, capsys: Capture) -> None:
    assert status_of([*EXAMPLE, *more]) == ExitCode.OK
    assert said in capsys.readouterr().out


def test_where_drafting_does_not_pay_there_is_no_place_for_it(capsys: Capture) -> None:
    assert status_of([*EXAMPLE, "--draft-ms", "30"]) == ExitCode.OK
    assert "Drafters apart" not in capsys.readouterr().out


def test_it_names_a_better_gamma(capsys: Capture) -> None:
    assert status_of([*EXAMPLE, "--gamma", "16", "--min-speedup", "0.1"]) == ExitCode.OK
    assert "By these numbers γ = 4 would be best." in capsys.readouterr().out


def test_as_json_it_is_one_document(capsys: Capture) -> None:
    assert status_of([*EXAMPLE, "--json"]) == ExitCode.OK
    report = json.loads(capsys.readouterr().out)
    assert (report["sizing"]["verifiers"], report["sizing"]["drafters"]) == (4, 2)
    assert report["costs"]["verify_pass"] == 0.025
    assert report["placement"]["full"] == pytest.approx(1.48)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["advise", "100"], "--verify-ms is not known"),
        (["advise", "100", "--verify-ms", "3"], "--alpha is not known"),
        ([*EXAMPLE, "--draft-busy", "0"], "how busy"),
        ([*EXAMPLE, "--drafter-cost", "-1"], "--drafter-cost"),
        ([*EXAMPLE, "--draft-ms", "0"], "draft step must be positive"),
        (["advise", "0", *EXAMPLE[2:]], "tokens per second must be positive"),
        (["advise", "1", "--from", "http://a:1/metrics", "--from", "http://b:1"], "--from takes one Prometheus"),
    ],
)
def test_a_mistake_is_one_line_and_status_2(arguments: list[str], said: str, capsys: Capture) -> None:
    assert status_of(arguments) == ExitCode.USAGE
    assert said in capsys.readouterr().err


def test_what_is_given_wins_over_what_is_read(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    monkeypatch.setattr(advise, "read", lambda sources, window: READING)
    assert status_of(["advise", "100", "--alpha", "0.9", "--verify-ms", "50", "--json"]) == ExitCode.OK
    costs = json.loads(capsys.readouterr().out)["costs"]
    assert (costs["alpha"], costs["verify_pass"]) == (0.9, 0.05)
    assert (costs["gamma"], costs["draft_step"], costs["plain_pass"], costs["round_trip"]) == (4, 0.004, 0.02, 0.001)
