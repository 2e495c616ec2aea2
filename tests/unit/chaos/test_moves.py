"""Moves between verifiers are counted from the logs of gateways, and restored prompts from what the store added."""

import json

import pytest

from tests.chaos.moves import HELD, NO_LOOKUP, NOT_BEGUN, UNUSED, Moves, count_moves, read_attempts

PROMPT = 8
GENERATION = "a1-1"


def began(epoch: int, verifier: str, committed: int) -> str:
    event = {"generation": GENERATION, "epoch": epoch, "verifier": verifier, "committed": committed}
    return json.dumps({"event": "attempt_began", **event})


def looked(epoch: int, miss: str = "", held: int = 0, restored: int = 0) -> str:
    event = {"session": "a1", "epoch": epoch, "miss": miss, "held": held, "restored": restored}
    return json.dumps({"event": "kv_lookup", **event})


def counted(*logs: str, **rounds: int) -> Moves:
    """Count moves; `n12=8` says that the round after 12 tokens found 8 tokens of the prompt cached."""
    cached = {(GENERATION, int(name[1:])): tokens for name, tokens in rounds.items()}
    return count_moves(read_attempts(logs), cached, PROMPT)


def moved(lookup: str | None, cached: int, committed: int = 12) -> Moves:
    logs = [began(1, "a:1", PROMPT), began(2, "b:1", committed), *([lookup] if lookup else [])]
    return counted(*logs, n8=0, **{f"n{committed}": cached})


def test_a_first_attempt_is_no_move() -> None:
    assert counted(began(1, "a:1", PROMPT), looked(1, restored=8), n8=8) == Moves()


def test_another_attempt_at_the_same_verifier_is_no_move() -> None:
    assert counted(began(1, "a:1", PROMPT), began(2, "a:1", 12), looked(2, restored=8), n8=0, n12=8) == Moves()


def test_a_round_that_found_what_the_store_added_is_restored() -> None:
    assert moved(looked(2, restored=8), cached=8) == Moves(1, 1)
    assert moved(looked(2, "absent", held=4, restored=4), cached=8) == Moves(1, 1)


@pytest.mark.parametrize(
    ("lookup", "cached", "reason"),
    [
        (looked(2, "absent"), 8, HELD),
        (looked(2, held=8), 8, HELD),
        (looked(2, held=8, restored=4), 8, HELD),
        (looked(2, "absent"), 0, "absent"),
        (looked(2, "slower"), 0, "slower"),
        (looked(2, "late"), 8, "late"),
        (looked(2, restored=8), 0, UNUSED),
        (None, 0, NO_LOOKUP),
    ],
)
def test_a_prompt_that_was_not_restored_has_a_reason(lookup: str | None, cached: int, reason: str) -> None:
    assert moved(lookup, cached) == Moves(1, 0, {reason: 1})


def test_a_move_before_the_first_round_had_nothing_to_restore() -> None:
    assert counted(began(1, "a:1", PROMPT), began(2, "b:1", PROMPT), n8=0) == Moves(1, 0, {NOT_BEGUN: 1})


def test_a_move_that_added_no_round_is_not_counted() -> None:
    ends = [began(2, "b:1", 12), began(3, "a:1", 12), looked(2, restored=8), looked(3, "slower")]
    assert counted(began(1, "a:1", PROMPT), *ends, n8=0, n12=0) == Moves(1, 0, {"slower": 1})
    assert counted(began(1, "a:1", PROMPT), began(2, "b:1", 12), n8=0) == Moves()


def test_the_order_is_that_of_epochs_over_all_logs() -> None:
    logs = [began(3, "a:1", 20), began(1, "a:1", PROMPT), looked(2, "late"), began(2, "b:1", 12), looked(3, restored=8)]
    assert counted(*logs, n8=0, n12=0, n20=8) == Moves(2, 1, {"late": 1})


def test_lines_that_are_no_entries_are_skipped() -> None:
    assert read_attempts(["attempt_began", began(1, "a:1", 8)[:-9], '{"event": "generation_ended"}']) == []
