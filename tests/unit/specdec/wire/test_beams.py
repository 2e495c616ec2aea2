"""Beam searches over the wire: every field arrives, and malformed messages are refused by name."""

import pytest

from specdec.beams.options import BeamOptions, BeamReport, EarlyStopping
from specdec.errors import FieldInvalid
from specdec.protos.drafter.v1 import drafter_pb2 as pb
from specdec.wire.beams import (
    BEAM_OPTIONS,
    BEAM_REPORT,
    BeamAsk,
    ProposedBeam,
    ask_from_pb,
    ask_to_pb,
    proposal_from_pb,
    proposal_to_pb,
)
from specdec.wire.tokens import tokens_to_bytes

ASK = BeamAsk("hash", (1, 2), (((3,), -0.5), ((4,), -1.25)), 4, 3, (0, 9), "salt")
NODES = (ProposedBeam(0, 5), ProposedBeam(1, 6), ProposedBeam(2, 7))


@pytest.mark.parametrize("options", [None, BeamOptions(4), *(BeamOptions(2, 0.0, each) for each in EarlyStopping)])
def test_options_arrive(options: BeamOptions | None) -> None:
    message = BEAM_OPTIONS.to_pb(options)
    assert message is None if options is None else BEAM_OPTIONS.from_pb(message) == options


def test_reports_arrive() -> None:
    report = BeamReport(-0.75, 12, 5)
    assert BEAM_REPORT.from_pb(BEAM_REPORT.to_pb(report)) == report


def test_an_ask_and_its_answer_arrive() -> None:
    assert ask_from_pb(ask_to_pb(ASK)) == ASK
    assert proposal_from_pb(proposal_to_pb(NODES), beams=2, vocab_size=8) == NODES


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"beams": []}, "beams"),
        ({"width": 0}, "width"),
        ({"width": 16, "steps": 4}, "width"),
        ({"prompt": b""}, "prompt"),
    ],
)
def test_an_ask_out_of_range_is_refused_by_name(change: dict[str, object], field: str) -> None:
    message = ask_to_pb(ASK)
    for name, value in change.items():
        message.ClearField(name)  # type: ignore[arg-type]
        if value:
            setattr(message, name, value)
    with pytest.raises(FieldInvalid) as refused:
        ask_from_pb(message)
    assert refused.value.param == field


@pytest.mark.parametrize(
    ("tokens", "parents"),
    [([5, 6], [0]), ([8], [0]), ([5], [2]), ([5, 5], [0, 0]), ([5] * 64, list(range(64)))],
    ids=["sizes", "id", "parent", "twice", "many"],
)
def test_a_malformed_proposal_is_refused(tokens: list[int], parents: list[int]) -> None:
    message = pb.DraftBeamsResponse(tokens=tokens_to_bytes(tokens), parents=tokens_to_bytes(parents))
    with pytest.raises(FieldInvalid):
        proposal_from_pb(message, beams=2, vocab_size=8)
