"""Every field of a streamed message arrives in its event."""

from dataclasses import fields
from typing import Any

from specdec.client.events import (
    AnswerDelta,
    DrafterCounts,
    FinishedEvent,
    FunctionCallDelta,
    RoundEvent,
    SpeculationTotals,
    StartedEvent,
    Token,
)
from specdec.client.messages import event_from_pb
from specdec.protos.common.v1 import common_pb2
from specdec.protos.gateway.v1 import gateway_pb2 as pb
from specdec.rules.speculation import Mode, Origin
from specdec.sampling.logprobs import TokenLogprobs
from specdec.sampling.params import FinishReason
from specdec.wire.logprobs import floats_to_bytes
from specdec.wire.tokens import tokens_to_bytes

DELTA = pb.MessageDelta(
    content="Hi", reasoning="Hm.", tool_calls=[pb.ToolCallDelta(index=1, id="c", name="look", arguments="{")]
)
LOGPROBS = pb.TokenLogprobs(
    logprob=-0.5, top_ids=tokens_to_bytes((3, 4)), top_logprobs=floats_to_bytes((-0.5, -1.5)), rank=2
)


def streamed(**event: Any) -> Any:
    return event_from_pb(pb.StreamGenerateResponse(**event))


def test_the_first_event() -> None:
    started = pb.Started(
        id="g", model="demo", prompt_token_ids=[1, 2], seed=3, system_fingerprint="f", session="s", turn=4,
        priority=common_pb2.PRIORITY_CLASS_FLEX,
    )  # fmt: skip
    assert streamed(started=started) == StartedEvent("g", "demo", 3, (1, 2), "f", "s", 4, "flex")


def test_a_round() -> None:
    token = pb.CommittedToken(id=3, text="a", origin=common_pb2.TOKEN_ORIGIN_BONUS, logprobs=LOGPROBS)
    sent = pb.Round(
        tokens=[token], rejected=[pb.RejectedToken(id=5, text="b")], drafted=4, accepted=3, choice=1, message=DELTA,
        prompt_logprobs=[LOGPROBS],
    )  # fmt: skip
    logprobs = TokenLogprobs(-0.5, ((3, -0.5), (4, -1.5)), 2)
    delta = AnswerDelta("Hi", (FunctionCallDelta(1, "{", "c", "look"),), "Hm.")
    tokens = (Token(3, "a", Origin.BONUS, logprobs),)
    assert streamed(round=sent) == RoundEvent(tokens, ("b",), None, 1, 4, 3, delta, (logprobs,))


def test_the_last_event() -> None:
    summary = pb.SpeculationSummary(
        mode=common_pb2.VERIFICATION_MODE_BLOCK, num_spec_steps=2, num_spec_tokens=4, num_draft_tokens=8,
        num_accepted_draft_tokens=6, draft_acceptance_rate=0.75, mean_acceptance_length=4, num_plain_steps=1,
        acceptance_histogram=[0, 1], fallbacks={"no_match": 1}, lenience=0.5, lossy=True, predicted_speedup=2,
        measured_speedup=1.5, drafters={"ngram": pb.DrafterSummary(num_spec_steps=2, alpha=0.75, c=0.125)},
    )  # fmt: skip
    usage = pb.Usage(
        prompt_tokens=1,
        completion_tokens=9,
        cached_tokens=2,
        accepted_prediction_tokens=3,
        rejected_prediction_tokens=4,
    )
    sent = pb.Finished(
        finish_reason=common_pb2.FINISH_REASON_STOP, matched_stop=".", usage=usage, speculation=summary, choice=1,
        message=DELTA,
    )  # fmt: skip
    event = streamed(finished=sent)
    assert isinstance(event, FinishedEvent)
    assert event.speculation == SpeculationTotals(
        Mode.BLOCK, 2, 4, 8, 6, 0.75, 4, (0, 1), 1, {"no_match": 1}, 0.5, True,
        {"ngram": DrafterCounts(num_spec_steps=2, alpha=0.75, c=0.125)}, 2, 1.5,
    )  # fmt: skip
    assert (event.reason, event.rounds, event.drafted, event.accepted) == (FinishReason.STOP, 3, 8, 6)
    assert (event.prompt_tokens, event.completion_tokens, event.cached_tokens) == (1, 9, 2)
    assert (event.accepted_prediction_tokens, event.rejected_prediction_tokens) == (3, 4)
    assert (event.choice, event.matched_stop, event.lossy, event.fallbacks) == (1, ".", True, {"no_match": 1})


def test_the_counts_of_speculation_are_all_of_the_api() -> None:
    for value, message in ((SpeculationTotals, pb.SpeculationSummary), (DrafterCounts, pb.DrafterSummary)):
        assert {each.name for each in fields(value)} == set(message.DESCRIPTOR.fields_by_name)
