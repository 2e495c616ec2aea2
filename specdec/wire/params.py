"""Sampling parameters, modes, token origins and finish reasons between values and protobuf."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Any

from protos.common.v1 import common_pb2 as pb
from specdec.errors import FieldInvalid
from specdec.rules.params import FinishReason, Mode, Origin, SamplingParams

# Values and protobuf enums have the same names, so a new value needs no line here.
_MODES = {mode: pb.VerificationMode.Value(f"VERIFICATION_MODE_{mode.name}") for mode in Mode}
_ORIGINS = {origin: pb.TokenOrigin.Value(f"TOKEN_ORIGIN_{origin.name}") for origin in Origin}
_FINISHES = {finish: pb.FinishReason.Value(f"FINISH_REASON_{finish.name}") for finish in FinishReason}
_MODES_BACK = {number: mode for mode, number in _MODES.items()}
_ORIGINS_BACK = {number: origin for origin, number in _ORIGINS.items()}
_FINISHES_BACK = {number: finish for finish, number in _FINISHES.items()}

_SAMPLING: dict[str, Callable[[Any], Any]] = {
    **{field.name: type(getattr(SamplingParams(), field.name)) for field in fields(SamplingParams)},
    "logit_bias": dict,
}
"""The fields of sampling parameters, which have the same names in the message, and what copies each from there."""


def mode_to_pb(mode: Mode) -> pb.VerificationMode.ValueType:
    """The number of a mode."""
    return _MODES[mode]


def mode_from_pb(number: pb.VerificationMode.ValueType) -> Mode:
    """The mode with a number.

    Raises:
        FieldInvalid: no mode is set, or the number is not known.
    """
    if number not in _MODES_BACK:
        raise FieldInvalid(f"unknown verification mode {number}", "speculation.mode")
    return _MODES_BACK[number]


def origin_to_pb(origin: Origin) -> pb.TokenOrigin.ValueType:
    """The number of an origin."""
    return _ORIGINS[origin]


def origin_from_pb(number: pb.TokenOrigin.ValueType) -> Origin:
    """The origin with a number; an unknown number is plain."""
    return _ORIGINS_BACK.get(number, Origin.PLAIN)


def finish_to_pb(finish: FinishReason | None) -> pb.FinishReason.ValueType:
    """The number of a finish reason; None means that the generation is running."""
    return pb.FINISH_REASON_UNSPECIFIED if finish is None else _FINISHES[finish]


def finish_from_pb(number: pb.FinishReason.ValueType) -> FinishReason | None:
    """The finish reason with a number; None while the generation is running."""
    return _FINISHES_BACK.get(number)


def sampling_to_pb(params: SamplingParams) -> pb.SamplingParams:
    """The message of sampling parameters; every field is set."""
    values: dict[str, Any] = {name: getattr(params, name) for name in _SAMPLING}
    return pb.SamplingParams(**values)


def sampling_from_pb(message: pb.SamplingParams) -> SamplingParams:
    """The sampling parameters in a message.

    Raises:
        FieldInvalid: a field is out of range.
    """
    values: dict[str, Any] = {name: copied(getattr(message, name)) for name, copied in _SAMPLING.items()}
    return SamplingParams(**values)
