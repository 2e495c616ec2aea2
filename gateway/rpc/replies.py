"""Converts events of a generation to messages of the gRPC API."""

from collections.abc import Sequence
from typing import Any

from gateway.callers.caller import PriorityClass
from gateway.rpc.tools import delta_to_pb, read_to_pb
from gateway.text.output import OutputToken, text_of
from gateway.turns.events import Event, Finished, Output, OutputRound, Started
from gateway.turns.statistics import Summary, total
from specdec.protos.common.v1 import common_pb2
from specdec.protos.gateway.v1 import gateway_pb2 as pb
from specdec.sampling.logprobs import TokenLogprobs
from specdec.wire.beams import BEAM_REPORT
from specdec.wire.codec import EnumCodec
from specdec.wire.logprobs import floats_to_bytes
from specdec.wire.params import finish_to_pb, mode_to_pb, origin_to_pb
from specdec.wire.report import report_to_pb
from specdec.wire.tokens import tokens_to_bytes

PRIORITY = EnumCodec[PriorityClass | None](PriorityClass, common_pb2.PriorityClass.DESCRIPTOR, unknown=None)


def event(happened: Event) -> dict[str, Any]:
    """Return the field of a streamed message that carries the event, by name."""
    match happened:
        case Started(turn, header):
            started = pb.Started(
                id=turn.name,
                model=header.model,
                prompt_token_ids=header.prompt,
                seed=header.call.sampling.seed,
                system_fingerprint=header.system_fingerprint,
                session=happened.session,
                turn=turn.number,
                priority=PRIORITY.to_pb(header.priority),
            )
            return {"started": started}
        case OutputRound():
            shown = pb.Round(
                text=happened.text,
                tokens=[_token(token) for token in happened.tokens],
                rejected=[pb.RejectedToken(id=token.id, text=token.text) for token in happened.rejected],
                drafted=happened.drafted,
                accepted=happened.accepted,
                report=report_to_pb(happened.report) if happened.report else None,
                choice=happened.choice,
                message=delta_to_pb(happened.message),
                prompt_logprobs=map(_logprobs, happened.prompt_logprobs or ()),
            )
            return {"round": shown}
        case Finished():
            finished = pb.Finished(
                finish_reason=finish_to_pb(happened.reason),
                matched_stop=happened.matched_stop,
                usage=_usage(happened),
                speculation=_summary(happened.summary),
                choice=happened.choice,
                message=delta_to_pb(happened.message),
            )
            return {"finished": finished}


def whole(started: Started, outputs: Sequence[Output]) -> pb.GenerateResponse:
    """Return the whole answer to Generate."""
    header, output, ended = started.header, outputs[0], [each.finished for each in outputs]
    usage = _usage(ended[0])
    usage.completion_tokens = sum(each.completion_tokens for each in ended)
    return pb.GenerateResponse(
        **_shown(output),
        id=started.turn.name,
        model=header.model,
        usage=usage,
        speculation=_summary(total([each.summary for each in ended])),
        seed=header.call.sampling.seed,
        session=started.session,
        turn=started.turn.number,
        priority=PRIORITY.to_pb(header.priority),
        choices=[_choice(each) for each in outputs] if len(outputs) > 1 else (),
    )


def _choice(output: Output) -> pb.Choice:
    return pb.Choice(**_shown(output))


def _shown(output: Output) -> dict[str, Any]:
    """Return the fields of an output that a whole answer has for its first choice, and each choice for itself."""
    return {
        "text": text_of(output.tokens),
        "tokens": [_token(token) for token in output.tokens],
        "finish_reason": finish_to_pb(output.finished.reason),
        "matched_stop": output.finished.matched_stop,
        "rounds": map(report_to_pb, output.rounds),
        "message": read_to_pb(output.message),
        "prompt_logprobs": map(_logprobs, output.prompt_logprobs or ()),
    }


def _token(token: OutputToken) -> pb.CommittedToken:
    logprobs = _logprobs(token.logprobs) if token.logprobs is not None else None
    return pb.CommittedToken(id=token.id, text=token.text, origin=origin_to_pb(token.origin), logprobs=logprobs)


def _logprobs(logprobs: TokenLogprobs) -> pb.TokenLogprobs:
    return pb.TokenLogprobs(
        logprob=logprobs.logprob,
        top_ids=tokens_to_bytes(token for token, _ in logprobs.top),
        top_logprobs=floats_to_bytes(logprob for _, logprob in logprobs.top),
        rank=logprobs.rank,
    )


def _usage(finished: Finished) -> pb.Usage:
    predicted = finished.summary.prediction
    return pb.Usage(
        prompt_tokens=finished.prompt_tokens,
        completion_tokens=finished.completion_tokens,
        cached_tokens=finished.cached_tokens,
        accepted_prediction_tokens=predicted.accepted,
        rejected_prediction_tokens=predicted.drafted - predicted.accepted,
    )


def _summary(summary: Summary) -> pb.SpeculationSummary:
    return pb.SpeculationSummary(
        mode=mode_to_pb(summary.speculation.mode),
        num_spec_steps=summary.num_spec_steps,
        num_spec_tokens=summary.num_spec_tokens,
        num_draft_tokens=summary.num_draft_tokens,
        num_accepted_draft_tokens=summary.num_accepted_draft_tokens,
        draft_acceptance_rate=summary.draft_acceptance_rate,
        mean_acceptance_length=summary.mean_acceptance_length,
        acceptance_histogram=summary.acceptance_histogram,
        num_plain_steps=summary.num_plain_steps,
        fallbacks=summary.fallbacks,
        lenience=summary.speculation.lenience,
        lossy=summary.speculation.lossy,
        drafters={
            name: pb.DrafterSummary(
                num_spec_steps=tally.rounds,
                num_draft_tokens=tally.drafted,
                num_accepted_draft_tokens=tally.accepted,
                alpha=tally.alpha,
                c=tally.c or 0.0,
            )
            for name, tally in summary.drafters.items()
        },
        predicted_speedup=summary.speedup.predicted,
        measured_speedup=summary.speedup.measured,
        beam_search=BEAM_REPORT.to_pb(summary.beams),
    )
