"""Features travel as bytes, in parts that join where they meet, and wrong ones are recognised."""

import pytest
import torch

from specdec.protos.drafter.v1 import drafter_pb2 as pb
from specdec.rules.speculation import Mode
from specdec.sampling.params import SamplingParams
from specdec.wire.features import Features
from specdec.wire.session import COMMIT, OPEN, Commit, Open

STATES = torch.arange(12.0).view(4, 3) / 7
FEATURES = Features.of(5, STATES)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_states_arrive_as_they_were(dtype: torch.dtype) -> None:
    features = Features.of(5, STATES.to(dtype))
    assert (features.start, features.count, features.end) == (5, 4, 9)
    found = features.states(3, dtype)
    assert found is not None
    assert torch.equal(found, STATES.to(dtype))


def test_messages_carry_features_and_earlier_ones_none() -> None:
    commit = Commit("s", 1, 6, (1, 2, 3, 4), 2, FEATURES)
    opened = Open("s", 1, tuple(range(10)), 3, SamplingParams(), Mode.BLOCK, 4, 20, features=FEATURES)
    assert COMMIT.from_pb(pb.Commit.FromString(COMMIT.to_pb(commit).SerializeToString())) == commit
    assert OPEN.from_pb(pb.Open.FromString(OPEN.to_pb(opened).SerializeToString())) == opened
    assert COMMIT.from_pb(pb.Commit(session_id="s")).features is None
    earlier = OPEN.to_pb(opened)
    earlier.ClearField("features")
    assert OPEN.from_pb(earlier).features is None


@pytest.mark.parametrize(("position", "start"), [(0, 5), (5, 5), (7, 7), (9, None), (12, None)])
def test_a_part_begins_at_a_position(position: int, start: int | None) -> None:
    part = FEATURES.since(position)
    assert part == (None if start is None else Features.of(start, STATES[start - 5 :]))


def test_parts_join_where_they_meet() -> None:
    first, second = Features.of(5, STATES[:2]), Features.of(7, STATES[2:])
    assert first.joined(second) == FEATURES
    assert Features.of(5, STATES[:3]).joined(second) == FEATURES
    assert FEATURES.joined(second) == FEATURES
    assert first.joined(None) == first
    assert Features.of(5, STATES[:1]).joined(second) == second


@pytest.mark.parametrize(("size", "count"), [(100, 4), (48, 4), (47, 3), (12, 1), (0, 1)])
def test_the_last_are_as_many_as_fit(size: int, count: int) -> None:
    assert FEATURES.last(size) == Features.of(9 - count, STATES[4 - count :])


@pytest.mark.parametrize(
    "wrong",
    [
        Features(5, 0, b""),
        Features(5, 3, FEATURES.values),
        Features(5, 4, FEATURES.values[:-1]),
        Features.of(5, STATES.bfloat16()),
        Features.of(5, STATES[:, :2]),
        Features.of(5, STATES * torch.inf),
    ],
)
def test_what_holds_other_numbers_has_no_states(wrong: Features) -> None:
    assert wrong.states(3, torch.float32) is None
