"""Passes with room for fewer sequences than decode are shared evenly."""

from collections import Counter

import pytest

from tests.unit.verifier_service.verifier_fakes import make_row
from verifier_service.backends.batch_plan import Row, ScheduledChunk
from verifier_service.backends.model_step import Rotation


def decoding(name: str, client: str = "", user: str = "") -> tuple[Row, int]:
    return make_row(name, range(5), client=client, user=user), 4


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


def served(many: int, few: int, base: float, slope: float) -> tuple[Counter[str], int]:
    """Return the passes that each sequence of two clients gets in 100 passes, and the rows of the last one.

    A pass over m rows takes base + slope · m seconds. At first, `few` sequences are there alone.
    """
    rotation, taken, chosen = Rotation(None), Counter[str](), 0
    lonely = [decoding(f"few{number}", "b") for number in range(few)]
    crowd = [decoding(f"many{number}", "a") for number in range(many)]
    for number in range(120):
        rows = rotation.chosen(lonely if number < 20 else [*crowd, *lonely])
        rotation.passed([ScheduledChunk(row, start, 1) for row, start in rows], base + slope * len(rows))
        chosen = len(rows)
        if number >= 20:
            taken.update(names(rows))
    return taken, chosen


def test_a_caller_with_few_sequences_is_in_each_of_the_shorter_passes() -> None:
    taken, rows = served(200, 2, 0.008, 0.0005)
    assert taken["few0"] == taken["few1"] == 100
    assert 60 <= rows <= 100
    assert rows / (0.008 + 0.0005 * rows) >= 0.88 * 202 / (0.008 + 0.0005 * 202)
    crowd = [count for name, count in taken.items() if name.startswith("many")]
    assert len(crowd) == 200
    assert max(crowd) - min(crowd) <= 2


def test_passes_stay_whole_where_shorter_ones_take_as_long() -> None:
    taken, rows = served(200, 2, 0.02, 0.0)
    assert rows >= 0.89 * 202
    assert taken["few0"] == 100


@pytest.mark.parametrize(("many", "few"), [(100, 0), (50, 50), (60, 25)])
def test_callers_without_few_sequences_share_whole_passes(many: int, few: int) -> None:
    assert served(many, few, 0.008, 0.0005)[1] == many + few


def test_users_share_the_part_of_their_client() -> None:
    """A client with many users has no more of a pass than one without."""
    rotation, taken = Rotation(8), Counter[str]()
    rows = [decoding(f"a{number}", "a", f"user{number}") for number in range(20)]
    rows += [decoding(f"b{number}", "b", "one") for number in range(9)] + [decoding("c", "b", "other")]
    for _ in range(200):
        chosen = names(rotation.chosen(rows))
        rotation.took_part(chosen)
        taken.update(chosen)
    assert sum(taken[f"a{number}"] for number in range(20)) == 800
    assert taken["c"] == 200
