"""What the span of a generation says of it, in the names of OpenTelemetry's conventions for generative AI."""

from gateway.turns.transcript import Transcript
from specdec.serving.telemetry.spans import Attributes, TraceSpan


def describe_generation(span: TraceSpan, transcript: Transcript, outcome: str) -> None:
    """Name the span and tell what was asked for, and what came of it; `outcome` is how the generation ended."""
    if not span.records:
        return
    header, summary = transcript.header, transcript.summary
    call = header.call
    operation = _operation(header.answer_format)
    asked: Attributes = {
        "gen_ai.operation.name": operation,
        "gen_ai.provider.name": "specdec",
        "gen_ai.request.model": header.model,
        "gen_ai.request.max_tokens": call.max_tokens,
        "gen_ai.request.temperature": call.sampling.temperature,
        "gen_ai.request.top_p": call.sampling.top_p,
        "gen_ai.request.seed": call.sampling.seed,
    }
    came: Attributes = {
        "gen_ai.response.id": transcript.turn.name,
        "gen_ai.response.model": header.model,
        "gen_ai.response.finish_reasons": [outcome],
        "gen_ai.usage.input_tokens": len(header.prompt),
        "gen_ai.usage.output_tokens": transcript.committed,
        "specdec.mode": call.speculation.mode.value,
        "specdec.drafted": summary.num_draft_tokens,
        "specdec.accepted": summary.num_accepted_draft_tokens,
    }
    span.describe({**asked, **came}, f"{operation} {header.model}")


def _operation(answer_format: str) -> str:
    """A chat or a completion over HTTP; over gRPC, a prompt of any kind."""
    if not answer_format:
        return "generate_content"
    return "chat" if "chat" in answer_format.split() else "text_completion"
