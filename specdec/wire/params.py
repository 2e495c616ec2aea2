"""Sampling, modes and labels between protobuf and values."""

from __future__ import annotations

from protos.common.v1 import common_pb2 as pb
from specdec.errors import FieldInvalid
from specdec.rules.params import FinishReason, Mode, Origin, SamplingParams

_MODES: dict[Mode, pb.VerificationMode.ValueType] = {
    Mode.OFF: pb.VERIFICATION_MODE_OFF,
    Mode.REJECTION: pb.VERIFICATION_MODE_REJECTION,
    Mode.BLOCK: pb.VERIFICATION_MODE_BLOCK,
    Mode.COUPLED: pb.VERIFICATION_MODE_COUPLED,
}
_ORIGINS: dict[Origin, pb.TokenOrigin.ValueType] = {
    Origin.ACCEPTED: pb.TOKEN_ORIGIN_ACCEPTED,
    Origin.RECOVERED: pb.TOKEN_ORIGIN_RECOVERED,
    Origin.BONUS: pb.TOKEN_ORIGIN_BONUS,
    Origin.PLAIN: pb.TOKEN_ORIGIN_PLAIN,
}
_FINISHES: dict[FinishReason | None, pb.FinishReason.ValueType] = {
    None: pb.FINISH_REASON_UNSPECIFIED,
    FinishReason.STOP: pb.FINISH_REASON_STOP,
    FinishReason.LENGTH: pb.FINISH_REASON_LENGTH,
}
_MODES_BACK = {wire: mode for mode, wire in _MODES.items()}
_ORIGINS_BACK = {wire: origin for origin, wire in _ORIGINS.items()}
_FINISHES_BACK = {wire: finish for finish, wire in _FINISHES.items()}


def mode_to_pb(mode: Mode) -> pb.VerificationMode.ValueType:
    """The mode's number."""
    return _MODES[mode]


def mode_from_pb(number: pb.VerificationMode.ValueType) -> Mode:
    """The mode of a number.

    Raises:
        FieldInvalid: no mode is set, or this build does not know it.
    """
    if number not in _MODES_BACK:
        raise FieldInvalid(f"unknown verification mode {number}", "speculation.mode")
    return _MODES_BACK[number]


def origin_to_pb(origin: Origin) -> pb.TokenOrigin.ValueType:
    """The origin's number."""
    return _ORIGINS[origin]


def origin_from_pb(number: pb.TokenOrigin.ValueType) -> Origin:
    """The origin of a number; one that is not known is plain."""
    return _ORIGINS_BACK.get(number, Origin.PLAIN)


def finish_to_pb(finish: FinishReason | None) -> pb.FinishReason.ValueType:
    """The reason's number; None is still running."""
    return _FINISHES[finish]


def finish_from_pb(number: pb.FinishReason.ValueType) -> FinishReason | None:
    """The reason of a number; None while running."""
    return _FINISHES_BACK.get(number)


def sampling_to_pb(params: SamplingParams) -> pb.SamplingParams:
    """Every field, resolved."""
    return pb.SamplingParams(
        temperature=params.temperature,
        top_p=params.top_p,
        top_k=params.top_k,
        min_p=params.min_p,
        seed=params.seed,
        presence_penalty=params.presence_penalty,
        frequency_penalty=params.frequency_penalty,
        repetition_penalty=params.repetition_penalty,
        logit_bias=dict(params.logit_bias),
        min_tokens=params.min_tokens,
        end_token_ids=params.end_token_ids,
        allowed_token_ids=params.allowed_token_ids,
        banned_token_ids=params.banned_token_ids,
    )


def sampling_from_pb(message: pb.SamplingParams) -> SamplingParams:
    """The value.

    Raises:
        FieldInvalid: a field is out of range.
    """
    return SamplingParams(
        temperature=message.temperature,
        top_p=message.top_p,
        top_k=message.top_k,
        min_p=message.min_p,
        seed=message.seed,
        presence_penalty=message.presence_penalty,
        frequency_penalty=message.frequency_penalty,
        repetition_penalty=message.repetition_penalty,
        logit_bias=dict(message.logit_bias),
        min_tokens=message.min_tokens,
        end_token_ids=tuple(message.end_token_ids),
        allowed_token_ids=tuple(message.allowed_token_ids),
        banned_token_ids=tuple(message.banned_token_ids),
    )
