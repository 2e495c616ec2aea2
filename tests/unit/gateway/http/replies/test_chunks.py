"""Chunks are serialized without models, and equal the output of the models in the API's description."""

import json
import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.http.replies.answers import writer_for
from gateway.http.replies.objects import ChatCompletionChunk, Completion, CompletionChoice, Delta, DeltaChoice
from gateway.http.replies.statistics import Usage
from gateway.http.replies.writers import AnswerFormat, Writer
from gateway.text.output import OutputToken
from gateway.tools.values import CallDelta, MessageDelta
from gateway.turns.events import Event, Finished, OutputRound, Started
from gateway.turns.statistics import Summary, Tally
from gateway.turns.turn import Turn
from specdec.rules.speculation import Origin
from specdec.sampling.logprobs import TokenLogprobs
from specdec.sampling.params import FinishReason
from specdec.wire.generation import Speedup
from specdec.wire.report import ReportedDraft, ReportedToken, RoundReport
from tests.support.gateway_fakes import ByteTokenizer
from tests.unit.gateway.turns.in_memory import header

LOGPROBS = TokenLogprobs(-0.25, ((98, -0.5), (0xC3, -30.0)))
REPORT = RoundReport(
    base_len=5,
    tokens=(ReportedToken(97, "a", Origin.ACCEPTED),),
    drafted=(ReportedDraft(97, "a", True, "model", 0.5, 0.25, math.nan), ReportedDraft(98, "b", False, "grammar")),
    accepted=1,
    drafter="model",
    fallback="",
    gamma_reason="fixed",
)
MESSAGES = (
    MessageDelta("some text", ()),
    MessageDelta("", (CallDelta(0, "call_1", "find", '{"a'),)),
    MessageDelta("é\n", (CallDelta(0, arguments='": 1}'), CallDelta(1, "call_2", "g", "{}"))),
    MessageDelta("", ()),
)


def writer(answer_format: AnswerFormat, *, logprobs: bool, detail: bool, tools: bool, choices: int = 2) -> Writer:
    begun = header()
    speculation = replace(begun.call.speculation, detail=detail)
    call = replace(begun.call, logprobs=2 if logprobs else None, speculation=speculation)
    reading = "hermes" if tools else ""
    begun = replace(begun, call=call, reading=reading, choices=choices, in_session=True, model='a "model" é')
    started = Started(Turn("0" * 32, "ann", 3), begun, ((97, 98), (99,))[:choices])
    return writer_for(started, ByteTokenizer(), answer_format)


def events(*, logprobs: bool, detail: bool, tools: bool) -> Iterator[Event]:
    for at, (text, choice) in enumerate(product(("a", '\x00\u2028"\\é', "😀"), (0, 1))):
        own = LOGPROBS if logprobs else None
        tokens = tuple(OutputToken(token, "", Origin.PLAIN) for token in text.encode()[:-1])
        last = OutputToken(text.encode()[-1], text, Origin.ACCEPTED, own)
        report, message = REPORT if detail else None, MESSAGES[at % 4] if tools else None
        yield OutputRound(text, (*tokens, last), (), 2, 1, 3 + at, report, choice, message)
        yield OutputRound("", (), (), 2, 1, 3 + at, report, choice, MESSAGES[3] if tools else None)
    for choice, reason in enumerate((FinishReason.STOP, FinishReason.LENGTH)):
        left = MESSAGES[choice] if tools else None
        yield Finished(reason, "END" if choice else "", 2, 9, 1, summary(), choice, left, tools and not choice)


def summary() -> Summary:
    speculation = replace(header().call.speculation, prediction=(1, 2))
    return Summary(speculation, rounds(), Speedup(1.5, 0.0), {"model": Tally(), "prediction": Tally()})


def rounds() -> Counter[tuple[int, int, str]]:
    return Counter({(2, 1, ""): 3, (0, 0, "no_drafter"): 1})


def written(chosen: Writer, given: Iterator[Event]) -> Iterator[bytes]:
    yield from chosen.opening()
    for event in given:
        yield from chosen.chunks(event)


@pytest.mark.parametrize("tools", [False, True])
@pytest.mark.parametrize(("logprobs", "detail"), [*product([False, True], repeat=2)])
@pytest.mark.parametrize(("include_usage", "continuous_usage"), [(False, False), (True, False), (True, True)])
@pytest.mark.parametrize(("chat", "token_ids", "echo"), [(0, 0, 0), (0, 1, 1), (0, 0, 1), (1, 0, 0), (1, 1, 0)])
def test_every_kind_of_chunk_is_as_its_model_writes_it(
    chat: int,
    token_ids: int,
    echo: int,
    include_usage: bool,
    continuous_usage: bool,
    logprobs: bool,
    detail: bool,
    tools: bool,
) -> None:
    chosen = AnswerFormat(bool(chat), include_usage, continuous_usage, bool(token_ids), bool(echo))
    tools = tools and bool(chat)
    options = {"logprobs": logprobs, "detail": detail, "tools": tools}
    model = ChatCompletionChunk if chat else Completion
    seen = list(written(writer(chosen, **options), events(**options)))
    assert len(seen) >= 8
    for data in seen:
        assert json.loads(data) == json.loads(model.model_validate_json(data).model_dump_json(exclude_unset=True))
    shown = [choice for data in seen for choice in json.loads(data)["choices"]]
    fields = {name for choice in shown for name in choice}
    assert ("token_ids" in fields, "rounds" in fields) == (bool(token_ids), detail)
    assert any(choice["logprobs"] for choice in shown) == logprobs
    assert any("tool_calls" in choice.get("delta", ()) for choice in shown) == tools
    counts = [json.loads(data).get("usage", "none") for data in seen]
    assert (None in counts, counts[-1] == "none") == (include_usage and not continuous_usage, not include_usage)
    assert all(counts) == (continuous_usage or not include_usage)


@pytest.mark.parametrize("usage", [False, True])
@given(texts=st.lists(st.tuples(st.text(min_size=1), st.integers(0, 1)), max_size=4))
def test_a_chunk_of_text_alone_is_its_models(usage: bool, texts: list[tuple[str, int]]) -> None:
    for chat in (False, True):
        chosen = writer(AnswerFormat(chat, include_usage=usage), logprobs=False, detail=False, tools=False)
        head = {"created": 0, "model": 'a "model" é', "system_fingerprint": header().system_fingerprint}
        head |= {"service_tier": "default"} | ({"usage": None} if usage else {})
        for text, index in texts:
            token = OutputToken(97, text, Origin.PLAIN)
            (data,) = chosen.chunks(OutputRound(text, (token,), (), 0, 0, 1, choice=index))
            bare = {"index": index, "logprobs": None, "finish_reason": None}
            expected = (
                ChatCompletionChunk(
                    **head,
                    id=f"chatcmpl-{'0' * 32}-3",
                    object="chat.completion.chunk",
                    choices=[DeltaChoice(**bare, delta=Delta(content=text))],
                )
                if chat
                else Completion(
                    **head,
                    id=f"cmpl-{'0' * 32}-3",
                    object="text_completion",
                    choices=[CompletionChoice(**bare, text=text)],
                )
            )
            assert json.loads(data) == json.loads(expected.model_dump_json(exclude_unset=True))


def test_many_tokens_that_waited_are_described_in_several_chunks() -> None:
    chosen = writer(AnswerFormat(True), logprobs=True, detail=False, tools=True)
    tokens = (OutputToken(97, "a", Origin.PLAIN, LOGPROBS),) * 600
    waited = OutputRound("", tokens, (), 0, 0, 600, message=MessageDelta("all", ()))
    choices = [json.loads(data)["choices"][0] for data in chosen.chunks(waited)]
    assert [len(each["logprobs"]["content"]) for each in choices] == [256, 256, 88]
    assert [each["delta"] for each in choices] == [{}, {}, {"content": "all"}]


def test_counts_so_far_are_those_of_all_choices() -> None:
    chosen = writer(AnswerFormat(False, True, True), logprobs=False, detail=False, tools=False)
    token = OutputToken(97, "a", Origin.PLAIN)
    seen = [
        json.loads(next(chosen.chunks(OutputRound("a", (token,), (), 0, 0, committed, choice=choice))))["usage"]
        for committed, choice in ((1, 0), (4, 1), (3, 0))
    ]
    assert [Usage(**each).completion_tokens for each in seen] == [1, 5, 7]
