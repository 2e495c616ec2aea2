"""Unread answers are kept for a while, and only briefly for an address or user with many of them."""

from gateway.callers.caller import Share
from gateway.http.connection import (
    CROWDED_SECONDS,
    MOST_OF_ADDRESS,
    MOST_OF_USER,
    UNREAD_SECONDS,
    UnreadAnswers,
)
from gateway.http.replies.answers import answered_share, note_share


def test_a_user_with_many_unread_answers_keeps_new_ones_only_briefly() -> None:
    unread, mallory = UnreadAnswers(), Share("192.0.2.1", "mallory")
    assert [unread.add(mallory) for _ in range(MOST_OF_USER)] == [UNREAD_SECONDS] * MOST_OF_USER
    assert unread.add(mallory) == CROWDED_SECONDS
    assert unread.add(Share("192.0.2.1", "other")) == UNREAD_SECONDS


def test_made_up_users_share_the_bound_of_their_address() -> None:
    unread = UnreadAnswers()
    waits = [unread.add(Share("192.0.2.1", str(each))) for each in range(MOST_OF_ADDRESS + 1)]
    assert waits == [UNREAD_SECONDS] * MOST_OF_ADDRESS + [CROWDED_SECONDS]
    assert unread.add(Share("192.0.2.2")) == UNREAD_SECONDS


def test_an_answer_that_is_read_again_counts_no_more() -> None:
    unread, share = UnreadAnswers(), Share("192.0.2.1", "a")
    for _ in range(3):
        for _ in range(MOST_OF_USER):
            assert unread.add(share) == UNREAD_SECONDS
        for _ in range(MOST_OF_USER):
            unread.remove(share)
    assert not unread._counts


def test_an_answer_belongs_to_its_address_until_its_user_is_known() -> None:
    scope = {"type": "http", "client": ("192.0.2.1", 1)}
    assert answered_share(scope) == Share("192.0.2.1")
    note_share(scope, Share("192.0.2.1", "a"))
    assert answered_share(scope) == Share("192.0.2.1", "a")
