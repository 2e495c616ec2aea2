"""The chaos checker finds and counts lost, duplicated and diverged tokens."""

import pytest

from tests.chaos.checker import Findings, check, compare, of_client, of_store
from tests.chaos.stream import Answer, Stream

RIGHT = (5, 6, 7, 8, 9, 5, 6, 7)


def seen(*events: tuple[str, list[int]], finish: str = "length") -> Stream:
    stream = Stream("s")
    for event, tokens in events:
        stream.take(event, tokens, "x" * len(tokens))
    stream.finish = finish
    return stream


ANSWER = Answer(RIGHT, "x" * len(RIGHT), "length")


@pytest.mark.parametrize(
    ("got", "found"),
    [
        (RIGHT, Findings()),
        ((5, 6, 7, 9, 5, 6, 7), Findings(lost=1)),
        ((5, 6, 7, 8, 9, 5), Findings(lost=2)),
        ((), Findings(lost=8)),
        ((5, 6, 7, 8, 7, 8, 9, 5, 6, 7), Findings(duplicated=2)),
        ((*RIGHT, 7), Findings(duplicated=1)),
        ((5, 6, 7, 8, 1, 5, 6, 7), Findings(diverged=1)),
        ((*RIGHT, 3), Findings(diverged=1)),
    ],
)
def test_a_sequence_is_compared_with_the_right_one(got: tuple[int, ...], found: Findings) -> None:
    assert compare(RIGHT, got) == found


def test_an_early_end_is_no_loss_where_the_rest_was_not_asked_for() -> None:
    assert not compare(RIGHT, RIGHT[:3], whole=False)
    assert compare(RIGHT, (5, 6, 8), whole=False)


def test_a_stream_that_went_on_where_it_was_broken_is_right() -> None:
    assert not of_client(ANSWER, seen(("g.3", [5, 6, 7]), ("g.8", [8, 9, 5, 6, 7])))


def test_a_stream_that_went_on_too_early_has_tokens_twice() -> None:
    assert of_client(ANSWER, seen(("g.3", [5, 6, 7]), ("g.8", [7, 8, 9, 5, 6, 7]))) == Findings(duplicated=1)


def test_an_answer_that_never_ended_is_not_right() -> None:
    assert of_client(ANSWER, seen(("g.8", list(RIGHT)), finish=""))


def test_what_was_shown_and_is_not_stored_is_lost() -> None:
    assert of_store(ANSWER, RIGHT[:2], shown=3) == Findings(lost=1)
    assert not of_store(ANSWER, RIGHT[:5], shown=3)


def test_what_is_stored_twice_is_found_though_nobody_saw_it() -> None:
    assert of_store(ANSWER, (5, 6, 5, 6, 7), shown=2) == Findings(duplicated=2)


def test_a_generation_missing_in_the_store_is_lost_with_all_that_was_shown() -> None:
    stream = seen(("g.8", list(RIGHT)))
    assert [found for _, found in check([stream], {"s": ANSWER}, {"g": RIGHT})] == [Findings()]
    assert [found for _, found in check([stream], {"s": ANSWER}, {})] == [Findings(lost=8)]
