"""Session messages between verifier and drafter are transmitted unchanged."""

import pytest

from specdec.protos.drafter.v1 import drafter_pb2 as pb
from specdec.rules.speculation import Mode
from specdec.sampling.params import SamplingParams
from specdec.wire.session import (
    CLOSE,
    COMMIT,
    END,
    LOAD,
    NACK,
    OPEN,
    Close,
    Commit,
    DraftEnd,
    Load,
    Nack,
    NackReason,
    Open,
)


def test_what_a_verifier_says_arrives() -> None:
    opened = Open("s", 3, (1, 2), 1, SamplingParams(seed=9), Mode.BLOCK, 4, 9, "salt")
    commit, close = Commit("s", 3, 2, (5,), 2), Close("s", 3)
    assert OPEN.from_pb(OPEN.to_pb(opened)) == opened
    assert COMMIT.from_pb(COMMIT.to_pb(commit)) == commit
    assert CLOSE.from_pb(CLOSE.to_pb(close)) == close


def test_what_a_drafter_says_arrives() -> None:
    end, load = DraftEnd("s", 3, 8, 2**63), Load(5, 0.25)
    assert END.from_pb(END.to_pb(end)) == end
    assert LOAD.from_pb(LOAD.to_pb(load)) == load


@pytest.mark.parametrize("reason", NackReason)
def test_every_reason_arrives_under_its_own_name(reason: NackReason) -> None:
    sent = NACK.to_pb(Nack("s", 3, reason, "why"))
    assert pb.Nack.Reason.Name(sent.reason) == f"REASON_{reason.name}"
    assert NACK.from_pb(sent) == Nack("s", 3, reason, "why")


def test_a_reason_that_is_not_known_counts_as_malformed() -> None:
    assert NACK.from_pb(pb.Nack(session_id="s", epoch=3)).reason is NackReason.MALFORMED
