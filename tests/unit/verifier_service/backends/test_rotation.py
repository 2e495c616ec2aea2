"""Passes with room for fewer sequences than decode are shared evenly."""

from collections import Counter

import pytest

from tests.unit.verifier_service.verifier_fakes import make_row
from verifier_service.backends.batch_plan import Row
from verifier_service.backends.model_thread import Rotation


def decoding(name: str) -> tuple[Row, int]:
    return make_row(name, range(5)), 4


def prompt(name: str) -> tuple[Row, int]:
    return make_row(name, range(100), 100), 0


def names(rows: list[tuple[Row, int]]) -> list[str]:
    return [row.kv_name for row, _ in rows]


def test_the_longest_waiting_go_first_and_prompts_wait_for_no_other() -> None:
    rotation = Rotation(2)
    for before in ("b", "ac"):
        rotation.took_part(before)
    assert names(rotation.chosen([prompt("p"), *map(decoding, "abcd")])) == ["p", "b", "d"]


def test_without_a_limit_all_go() -> None:
    assert len(Rotation(None).chosen([*map(decoding, "abcd")])) == 4


@pytest.mark.parametrize("sessions", [8, 9, 11, 15, 16, 17, 19, 22, 24, 25, 30])
@pytest.mark.parametrize("away", [0, 1])
def test_every_session_gets_as_many_passes(sessions: int, away: int) -> None:
    """Sessions are `away` for some passes after each of theirs, while they wait for drafts."""
    rotation, taken, passes = Rotation(8), Counter[str](), 30 * sessions
    drafting: list[list[str]] = [[] for _ in range(away)]
    for _ in range(passes):
        absent = {name for names in drafting for name in names}
        waiting = [decoding(name) for name in map(str, range(sessions)) if name not in absent]
        chosen = names(rotation.chosen(waiting))
        rotation.took_part(chosen)
        taken.update(chosen)
        drafting = [*drafting, chosen][1:]
    mean = sum(taken.values()) / sessions
    assert len(taken) == sessions
    assert all(abs(count - mean) <= 2 for count in taken.values()), taken
