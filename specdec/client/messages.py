"""Translation of messages of the gateway's gRPC API to the client's events."""

from typing import Any

from specdec.client.events import (
    AnswerDelta,
    DrafterCounts,
    Event,
    FinishedEvent,
    FunctionCallDelta,
    RoundEvent,
    SpeculationTotals,
    StartedEvent,
    Token,
)
from specdec.errors import InternalError
from specdec.protos.common.v1 import common_pb2
from specdec.protos.gateway.v1 import gateway_pb2 as pb
from specdec.sampling.logprobs import TokenLogprobs
from specdec.wire.beams import BEAM_REPORT
from specdec.wire.codec import Codec, Pair
from specdec.wire.logprobs import floats_from_bytes
from specdec.wire.params import MODE, finish_from_pb, mode_to_pb, origin_from_pb
from specdec.wire.report import report_from_pb
from specdec.wire.tokens import tokens_from_bytes

_DRAFTER = Codec(DrafterCounts, pb.DrafterSummary)
_COUNTS = Codec(
    SpeculationTotals,
    pb.SpeculationSummary,
    mode=Pair(mode_to_pb, lambda number: MODE.from_pb(number) if number else None),
    beam_search=BEAM_REPORT,
    drafters=Pair(
        lambda drafters: {name: _DRAFTER.to_pb(each) for name, each in drafters.items()},
        lambda drafters: {name: _DRAFTER.from_pb(each) for name, each in drafters.items()},
    ),
)


def event_from_pb(message: pb.StreamGenerateResponse | pb.ResumeGenerationResponse) -> Event:
    """Return the event of a streamed message."""
    match message.WhichOneof("event"):
        case "started":
            return _started(message.started)
        case "round":
            return _round(message.round)
        case "finished":
            return _finished(message.finished)
        case _:
            raise InternalError("the gateway sent an event of a kind this client does not know")


def _started(started: pb.Started) -> StartedEvent:
    return StartedEvent(
        started.id,
        started.model,
        started.seed,
        tuple(started.prompt_token_ids),
        started.system_fingerprint,
        started.session,
        started.turn,
        _name(common_pb2.PriorityClass.DESCRIPTOR, started.priority),
    )


def _round(round_: pb.Round) -> RoundEvent:
    return RoundEvent(
        tuple(_token(token) for token in round_.tokens),
        tuple(token.text for token in round_.rejected),
        report_from_pb(round_.report) if round_.HasField("report") else None,
        round_.choice,
        round_.drafted,
        round_.accepted,
        _delta(round_.message) if round_.HasField("message") else None,
        tuple(map(_logprobs, round_.prompt_logprobs)),
    )


def _token(token: pb.CommittedToken) -> Token:
    logprobs = _logprobs(token.logprobs) if token.HasField("logprobs") else None
    return Token(token.id, token.text, origin_from_pb(token.origin), logprobs)


def _logprobs(message: pb.TokenLogprobs) -> TokenLogprobs:
    likely = floats_from_bytes(message.top_logprobs, "top_logprobs")
    top = tuple(zip(tokens_from_bytes(message.top_ids), likely, strict=True))
    return TokenLogprobs(message.logprob, top, message.rank)


def _delta(message: pb.MessageDelta) -> AnswerDelta:
    calls = (
        FunctionCallDelta(call.index, call.arguments, call.id, call.name, call.custom) for call in message.tool_calls
    )
    return AnswerDelta(message.content, tuple(calls), message.reasoning)


def _finished(finished: pb.Finished) -> FinishedEvent:
    summary, usage = finished.speculation, finished.usage
    return FinishedEvent(
        reason=finish_from_pb(finished.finish_reason),
        prompt_tokens=usage.prompt_tokens,
        completion_tokens=usage.completion_tokens,
        drafted=summary.num_draft_tokens,
        accepted=summary.num_accepted_draft_tokens,
        rounds=summary.num_spec_steps + summary.num_plain_steps,
        fallbacks=dict(summary.fallbacks),
        lossy=summary.lossy,
        choice=finished.choice,
        matched_stop=finished.matched_stop,
        cached_tokens=usage.cached_tokens,
        accepted_prediction_tokens=usage.accepted_prediction_tokens,
        rejected_prediction_tokens=usage.rejected_prediction_tokens,
        speculation=_COUNTS.from_pb(summary),
        message=_delta(finished.message) if finished.HasField("message") else None,
    )


def _name(numbers: Any, number: int) -> str:
    """Return the name of an enum's number in lower case, without its prefix; empty for an unknown or unset one."""
    found = numbers.values_by_number.get(number) if number else None
    return found.name.removeprefix(numbers.values[0].name.removesuffix("UNSPECIFIED")).lower() if found else ""
