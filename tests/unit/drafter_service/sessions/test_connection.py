"""Protobuf in and out: nothing is lost, and an unreadable message affects only its own session."""

import torch

from drafter_service.sessions.connection import messages_from_pb, replies_to_pb
from drafter_service.sessions.stream import MalformedMessage
from specdec.protos.common.v1 import common_pb2
from specdec.protos.drafter.v1 import drafter_pb2 as pb
from specdec.rules.draft import Draft, SparseProbs
from specdec.rules.speculation import Mode
from specdec.sampling.params import SamplingParams
from specdec.wire.draft import DraftTokens
from specdec.wire.params import mode_to_pb, sampling_to_pb
from specdec.wire.session import Close, Commit, DraftEnd, Nack, NackReason, Open
from specdec.wire.tokens import tokens_to_bytes

PARAMS = SamplingParams(temperature=0.5, seed=9)
OPEN = pb.Open(
    session_id="s",
    epoch=3,
    tokens=tokens_to_bytes([1, 2]),
    prompt_len=1,
    sampling=sampling_to_pb(PARAMS),
    mode=mode_to_pb(Mode.BLOCK),
    gamma=4,
    max_len=9,
)
COMMIT = pb.Commit(session_id="s", epoch=3, base_len=2, tokens=tokens_to_bytes([5]), gamma=2)


def test_every_field_of_a_message_arrives() -> None:
    request = pb.DraftRequest(opens=[OPEN], commits=[COMMIT], closes=[pb.Close(session_id="t", epoch=4)])
    assert list(messages_from_pb(request)) == [
        Open("s", 3, (1, 2), 1, PARAMS, Mode.BLOCK, 4, 9),
        Commit("s", 3, 2, (5,), 2),
        Close("t", 4),
    ]


def test_what_cannot_be_read_is_malformed_and_the_rest_arrives() -> None:
    half = pb.Commit(session_id="half", epoch=5, tokens=b"\x01")
    greedy = pb.Open(session_id="greedy", epoch=6, sampling=common_pb2.SamplingParams(temperature=-1.0))
    unknown = pb.Open(session_id="unknown", epoch=7, sampling=sampling_to_pb(PARAMS))
    unknown.mode = max(unknown.mode, 99)  # type: ignore[assignment]
    messages = list(messages_from_pb(pb.DraftRequest(opens=[greedy, unknown, OPEN], commits=[half, COMMIT])))
    assert [(type(message), message.session_id, message.epoch) for message in messages] == [
        (MalformedMessage, "greedy", 6),
        (MalformedMessage, "unknown", 7),
        (Open, "s", 3),
        (MalformedMessage, "half", 5),
        (Commit, "s", 3),
    ]


def test_every_field_of_a_frame_is_sent() -> None:
    probs = SparseProbs(torch.tensor([2, 5]), torch.tensor([65535, 7]))
    draft = DraftTokens("s", 3, 2, 99, Draft((5,), (probs,)))
    nacks = [Nack("n", 1, reason, "why") for reason in NackReason]
    sent = replies_to_pb([draft, DraftEnd("e", 4, 8, 7), *nacks])
    assert [(draft.session_id, draft.base_len, draft.prefix_hash) for draft in sent.drafts] == [("s", 2, 99)]
    assert (sent.drafts[0].tokens, list(sent.drafts[0].support_sizes)) == (tokens_to_bytes([5]), [2])
    assert list(sent.ends) == [pb.DraftEnd(session_id="e", epoch=4, base_len=8, prefix_hash=7)]
    assert [pb.Nack.Reason.Name(nack.reason) for nack in sent.nacks] == [
        f"REASON_{reason.name}" for reason in NackReason
    ]
    assert {(nack.session_id, nack.epoch, nack.detail) for nack in sent.nacks} == {("n", 1, "why")}
