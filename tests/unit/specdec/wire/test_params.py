"""Sampling parameters and labels are transmitted unchanged, and invalid values are refused."""

import subprocess
import sys
from dataclasses import fields

import pytest

from specdec.errors import FieldInvalid
from specdec.protos.common.v1 import common_pb2 as pb
from specdec.rules.speculation import Mode, Origin
from specdec.sampling.grammar import Grammar, GrammarKind
from specdec.sampling.params import FinishReason, SamplingParams
from specdec.wire.params import (
    finish_from_pb,
    finish_to_pb,
    mode_from_pb,
    mode_to_pb,
    origin_from_pb,
    origin_to_pb,
    sampling_from_pb,
    sampling_to_pb,
)

EVERYTHING = SamplingParams(
    temperature=0.7,
    top_p=0.9,
    top_k=40,
    min_p=0.05,
    seed=2**63 - 1,
    presence_penalty=-0.5,
    frequency_penalty=1.5,
    repetition_penalty=1.25,
    logit_bias={3: -100.0, 7: 2.5},
    min_tokens=4,
    end_token_ids=(0, 2),
    allowed_token_ids=(1, 5),
    bad_words=((7, 8), (9,)),
    banned_token_ids=(5, 6),
    grammar=Grammar(GrammarKind.REGEX, "a"),
)


def test_every_sampling_parameter_survives_the_wire() -> None:
    default = SamplingParams()
    assert all(getattr(EVERYTHING, field.name) != getattr(default, field.name) for field in fields(SamplingParams))
    sent = sampling_to_pb(EVERYTHING).SerializeToString()
    assert sampling_from_pb(pb.SamplingParams.FromString(sent)) == EVERYTHING


def test_defaults_survive_the_wire() -> None:
    assert sampling_from_pb(sampling_to_pb(SamplingParams())) == SamplingParams()


@pytest.mark.parametrize(
    "wrong",
    [
        pb.SamplingParams(),
        pb.SamplingParams(top_p=1.0, repetition_penalty=1.0, temperature=-1.0),
        pb.SamplingParams(top_p=1.0, repetition_penalty=1.0, temperature=float("nan")),
        pb.SamplingParams(top_p=1.0, repetition_penalty=1.0, seed=2**63),
        pb.SamplingParams(top_p=1.0, repetition_penalty=1.0, logit_bias={1: float("inf")}),
    ],
)
def test_parameters_out_of_range_are_refused(wrong: pb.SamplingParams) -> None:
    with pytest.raises(FieldInvalid):
        sampling_from_pb(wrong)


@pytest.mark.parametrize("mode", Mode)
def test_modes_survive_the_wire(mode: Mode) -> None:
    assert mode_from_pb(mode_to_pb(mode)) is mode


@pytest.mark.parametrize("number", [pb.VERIFICATION_MODE_UNSPECIFIED, max(pb.VerificationMode.values()) + 1])
def test_a_mode_that_is_not_set_or_not_known_is_refused(number: pb.VerificationMode.ValueType) -> None:
    with pytest.raises(FieldInvalid, match=str(number)):
        mode_from_pb(number)


@pytest.mark.parametrize("origin", Origin)
def test_origins_survive_the_wire(origin: Origin) -> None:
    assert origin_from_pb(origin_to_pb(origin)) is origin


@pytest.mark.parametrize("finish", [None, *FinishReason])
def test_finish_reasons_survive_the_wire(finish: FinishReason | None) -> None:
    assert finish_from_pb(finish_to_pb(finish)) is finish


def test_a_process_without_torch_can_use_them() -> None:
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from specdec.wire.params import sampling_to_pb\n"
        "from specdec.wire.tokens import tokens_to_bytes\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
