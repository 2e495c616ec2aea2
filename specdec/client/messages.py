"""Translation between the client's values and the messages of the gateway's gRPC API."""

from specdec.client.events import Event, FinishedEvent, PromptRequest, RoundEvent, StartedEvent, Token
from specdec.errors import InternalError
from specdec.planning.gamma_policy import GammaPolicy
from specdec.protos.gateway.v1 import gateway_pb2
from specdec.wire.params import GAMMA_POLICY, TREE, finish_from_pb, mode_to_pb, origin_from_pb
from specdec.wire.report import report_from_pb


def request_to_pb(request: PromptRequest) -> gateway_pb2.GenerateRequest:
    """Return the message of a request."""
    made = gateway_pb2.GenerateRequest(
        sampling=gateway_pb2.SamplingOptions(temperature=request.temperature, top_p=request.top_p, seed=request.seed),
        stop=gateway_pb2.StopOptions(max_tokens=request.max_tokens, stop=request.stop),
        user=request.user,
        cache_salt=request.cache_salt,
        session=request.session,
        speculation=gateway_pb2.SpeculationOptions(
            mode=mode_to_pb(request.mode),
            gamma=request.gamma if isinstance(request.gamma, int) else None,
            policy=GAMMA_POLICY.to_pb(request.gamma) if isinstance(request.gamma, GammaPolicy) else None,
            lenience=request.lenience,
            drafter=request.drafter,
            tree=TREE.to_pb(request.tree),
            detail=request.detail,
        ),
    )
    if request.chat:
        made.chat.messages.add(role="user", content=request.prompt)
    else:
        made.text = request.prompt
    return made


def event_from_pb(message: gateway_pb2.StreamGenerateResponse | gateway_pb2.ResumeGenerationResponse) -> Event:
    """Return the event of a streamed message."""
    match message.WhichOneof("event"):
        case "started":
            return StartedEvent(message.started.id, message.started.model, message.started.seed)
        case "round":
            return _round(message.round)
        case "finished":
            return _finished(message.finished)
        case _:
            raise InternalError("the gateway sent an event of a kind this client does not know")


def _round(round_: gateway_pb2.Round) -> RoundEvent:
    tokens = (Token(token.id, token.text, origin_from_pb(token.origin)) for token in round_.tokens)
    report = report_from_pb(round_.report) if round_.HasField("report") else None
    return RoundEvent(tuple(tokens), tuple(token.text for token in round_.rejected), report)


def _finished(finished: gateway_pb2.Finished) -> FinishedEvent:
    summary = finished.speculation
    return FinishedEvent(
        reason=finish_from_pb(finished.finish_reason),
        prompt_tokens=finished.usage.prompt_tokens,
        completion_tokens=finished.usage.completion_tokens,
        drafted=summary.num_draft_tokens,
        accepted=summary.num_accepted_draft_tokens,
        rounds=summary.num_spec_steps + summary.num_plain_steps,
        fallbacks=dict(summary.fallbacks),
        lossy=summary.lossy,
    )
