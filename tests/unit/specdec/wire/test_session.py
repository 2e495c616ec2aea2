"""What verifier and drafter say of a session arrives as it was sent."""

import pytest

from protos.drafter.v1 import drafter_pb2 as pb
from specdec.rules.params import Mode, SamplingParams
from specdec.wire.session import (
    Close,
    Commit,
    DraftEnd,
    Load,
    Nack,
    NackReason,
    Open,
    close_from_pb,
    close_to_pb,
    commit_from_pb,
    commit_to_pb,
    end_from_pb,
    end_to_pb,
    load_from_pb,
    load_to_pb,
    nack_from_pb,
    nack_to_pb,
    open_from_pb,
    open_to_pb,
)


def test_what_a_verifier_says_arrives() -> None:
    opened = Open("s", 3, (1, 2), 1, SamplingParams(seed=9), Mode.BLOCK, 4, 9, "salt")
    commit, close = Commit("s", 3, 2, (5,), 2), Close("s", 3)
    assert open_from_pb(open_to_pb(opened)) == opened
    assert commit_from_pb(commit_to_pb(commit)) == commit
    assert close_from_pb(close_to_pb(close)) == close


def test_what_a_drafter_says_arrives() -> None:
    end, load = DraftEnd("s", 3, 8), Load(5, 0.25)
    assert end_from_pb(end_to_pb(end)) == end
    assert load_from_pb(load_to_pb(load)) == load


@pytest.mark.parametrize("reason", NackReason)
def test_every_reason_arrives_under_its_own_name(reason: NackReason) -> None:
    sent = nack_to_pb(Nack("s", 3, reason, "why"))
    assert pb.Nack.Reason.Name(sent.reason) == f"REASON_{reason.name}"
    assert nack_from_pb(sent) == Nack("s", 3, reason, "why")


def test_a_reason_that_is_not_known_counts_as_malformed() -> None:
    assert nack_from_pb(pb.Nack(session_id="s", epoch=3)).reason is NackReason.MALFORMED
