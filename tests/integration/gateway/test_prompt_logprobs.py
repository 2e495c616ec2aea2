"""Log probabilities of prompts, requested as evaluation harnesses and clients of vLLM request them."""

from itertools import accumulate
from typing import Any

import grpc
import openai
import pytest

from specdec.protos.gateway.v1 import gateway_pb2 as pb
from specdec.protos.gateway.v1 import gateway_pb2_grpc as pb_grpc
from specdec.wire.logprobs import floats_from_bytes
from specdec.wire.tokens import tokens_from_bytes
from tests.integration.gateway.stage import Stage
from tests.support.gateway_fakes import EOS, Script, output

PROMPT = "Héllo"
IDS = list(PROMPT.encode())
SCRIPT = Script(text="wörld")
TOKENS = output(SCRIPT)
COMPLETION: dict[str, Any] = {"model": "bytes", "prompt": PROMPT, "max_tokens": 50}


@pytest.fixture(autouse=True)
def script(here: Stage) -> None:
    here.verifier.script = SCRIPT


def scores(tokens: list[int]) -> list[float]:
    return [-token / 16 for token in tokens]


@pytest.mark.parametrize("prompt", [PROMPT, IDS])
async def test_an_echo_has_those_of_the_prompt(prompt: Any, here: Stage) -> None:
    answer: Any = await here.client.completions.create(**COMPLETION | {"prompt": prompt}, echo=True, logprobs=1)
    choice = answer.choices[0]
    found = choice.logprobs
    assert choice.text == PROMPT + SCRIPT.text
    assert found.token_logprobs == [None, *scores(IDS[1:]), *scores(TOKENS)]
    assert found.top_logprobs[0] is None
    own = list(zip(found.tokens, found.token_logprobs, found.top_logprobs, strict=True))[1:]
    assert all(likely[token] == logprob for token, logprob, likely in own if token != "\ufffd")
    assert len(found.tokens) == len(IDS) + len(TOKENS)
    widths = [0 if 0xC0 <= token < EOS else int(token < EOS) for token in (*IDS, *TOKENS)]
    assert found.text_offset == list(accumulate([0, *widths]))[:-1]
    assert answer.usage.completion_tokens == len(TOKENS)


@pytest.mark.parametrize("prompt", [["ab", "c"], [[97, 98], [99]]])
async def test_each_prompt_of_a_list_has_its_own(prompt: Any, here: Stage) -> None:
    answer: Any = await here.client.completions.create(
        **COMPLETION | {"prompt": prompt, "max_tokens": 1}, echo=True, logprobs=1
    )
    assert [choice.text for choice in answer.choices] == ["abw", "cw"]
    assert [choice.logprobs.token_logprobs for choice in answer.choices] == [
        [None, *scores([98, TOKENS[0]])],
        [None, *scores([TOKENS[0]])],
    ]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("logprobs", [None, 1])
async def test_without_tokens_it_ends_with_the_prompt(stream: bool, logprobs: int | None, here: Stage) -> None:
    more = {"max_tokens": 0, "echo": True, "logprobs": logprobs, "stream": stream}
    answer: Any = await here.client.completions.create(**COMPLETION | more)
    choices = [each async for chunk in answer for each in chunk.choices] if stream else answer.choices
    assert "".join(choice.text for choice in choices) == PROMPT
    found = [value for choice in choices if choice.logprobs for value in choice.logprobs.token_logprobs]
    assert found == ([None, *scores(IDS[1:])] if logprobs else [])
    assert choices[-1].finish_reason == "length"
    assert stream or answer.usage.completion_tokens == 0
    assert [call.max_tokens for call in here.verifier.calls] == [1]


async def test_a_stream_has_the_same_as_the_whole_answer(here: Stage) -> None:
    whole: Any = (await here.client.completions.create(**COMPLETION, echo=True, logprobs=2)).choices[0]
    stream: Any = await here.client.completions.create(**COMPLETION, echo=True, logprobs=2, stream=True)
    parts = [chunk.choices[0] async for chunk in stream]
    assert "".join(part.text for part in parts) == whole.text
    for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
        joined = [each for part in parts if part.logprobs for each in getattr(part.logprobs, name)]
        assert joined == getattr(whole.logprobs, name)


async def test_vllms_field_lists_ids_with_their_ranks(here: Stage) -> None:
    answer: Any = await here.client.completions.create(**COMPLETION, extra_body={"prompt_logprobs": 1})
    (choice,) = answer.choices
    first, second, *rest = choice.prompt_logprobs
    assert first is None
    assert second == {
        str(IDS[1]): {"logprob": -IDS[1] / 16, "rank": IDS[1] + 1, "decoded_token": "\ufffd"},
        "128": {"logprob": 0.0, "rank": 1, "decoded_token": "\ufffd"},
    }
    assert len(rest) == len(IDS) - 2
    assert (choice.text, choice.logprobs) == (SCRIPT.text, None)
    chat: Any = await here.client.chat.completions.create(
        model="bytes", messages=[{"role": "user", "content": "hi"}], extra_body={"prompt_logprobs": 0}
    )
    assert [None if each is None else len(each) for each in chat.prompt_logprobs] == [None] + [1] * 8


async def test_what_is_not_given_is_refused_by_name(here: Stage) -> None:
    for fields in (
        {"extra_body": {"prompt_logprobs": 1}, "stream": True},
        {"extra_body": {"prompt_logprobs": 21}},
        {"extra_body": {"prompt_logprobs": -1}},
    ):
        with pytest.raises(openai.BadRequestError) as caught:
            await here.client.completions.create(**COMPLETION, **fields)
        assert caught.value.param == "prompt_logprobs"
    with pytest.raises(openai.BadRequestError, match="max_tokens"):
        await here.client.completions.create(**COMPLETION | {"max_tokens": 0})
    assert not here.verifier.calls


async def test_over_grpc_they_are_on_the_first_round(here: Stage, channel: grpc.aio.Channel) -> None:
    stub: Any = pb_grpc.GenerationServiceStub(channel)
    asked = pb.GenerateRequest(text=PROMPT, prompt_logprobs=2)
    whole: Any = await stub.Generate(asked)
    assert [each.logprob for each in whole.prompt_logprobs] == scores(IDS[1:])
    assert [each.rank for each in whole.prompt_logprobs] == [token + 1 for token in IDS[1:]]
    assert {tuple(tokens_from_bytes(each.top_ids)) for each in whole.prompt_logprobs} == {(128, 129)}
    assert {tuple(floats_from_bytes(each.top_logprobs, "x")) for each in whole.prompt_logprobs} == {(0.0, -0.5)}
    events = [event async for event in stub.StreamGenerate(pb.StreamGenerateRequest(request=asked))]
    rounds = [event.round for event in events if event.HasField("round")]
    assert list(rounds[0].prompt_logprobs) == list(whole.prompt_logprobs)
    assert not any(each.prompt_logprobs for each in rounds[1:])
