"""States that a head has not read follow the tokens of their sequence."""

import pytest
import torch

from specdec.engine.heads.pending import PendingStates


def pending(start: int, *parts: list[int]) -> PendingStates:
    """Return states whose single element is ten times the token."""
    made = PendingStates(start)
    for tokens in parts:
        made.append(tokens, 10.0 * torch.tensor(tokens)[:, None])
    return made


def test_states_are_taken_in_order_once() -> None:
    states = pending(5, [1, 2], [3])
    assert (states.end, states.tokens) == (8, [1, 2, 3])
    assert states.take()[:, 0].tolist() == [10, 20, 30]
    assert (states.start, states.end, len(states)) == (8, 8, 0)


def test_truncation_drops_the_last_states() -> None:
    states = pending(5, [1, 2], [3, 4])
    states.truncate(7)
    states.truncate(20)
    states.append([8], torch.tensor([[80.0]]))
    assert states.tokens == [1, 2, 8]
    assert states.take()[:, 0].tolist() == [10, 20, 80]


def test_truncation_copies_no_state(monkeypatch: pytest.MonkeyPatch) -> None:
    states = pending(5, [1, 2], [3, 4], [5, 6, 7], [8])
    with monkeypatch.context() as patch:
        patch.setattr(torch, "cat", None)
        states.truncate(8)
    assert states.tokens == [1, 2, 3]
    assert states.take()[:, 0].tolist() == [10, 20, 30]


def test_truncation_before_the_first_state_expects_earlier_states() -> None:
    states = pending(5, [1, 2])
    states.truncate(3)
    assert (states.start, states.end) == (3, 3)
    states.append([7], torch.tensor([[70.0]]))
    assert states.take()[:, 0].tolist() == [70]


def test_a_path_of_a_tree_is_kept() -> None:
    states = pending(5, [1], [2, 3, 4])
    states.keep(6, [0, 2])
    assert states.tokens == [1, 2, 4]
    assert states.take()[:, 0].tolist() == [10, 20, 40]


def test_the_last_states_can_be_kept_alone() -> None:
    states = pending(5, [1, 2, 3], [4])
    states.shorten(4)
    states.shorten(2)
    assert (states.start, states.end, states.tokens) == (7, 9, [3, 4])
    assert states.take()[:, 0].tolist() == [30, 40]
