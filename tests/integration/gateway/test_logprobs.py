"""Log probabilities for clients of OpenAI and gRPC: one for every token, also if text is cut or held back."""

from itertools import accumulate, pairwise
from typing import Any

import grpc
import pytest

from specdec.errors import NoVerifier
from specdec.protos.gateway.v1 import gateway_pb2 as pb
from specdec.protos.gateway.v1 import gateway_pb2_grpc as pb_grpc
from specdec.wire.logprobs import floats_from_bytes
from specdec.wire.tokens import tokens_from_bytes
from tests.integration.gateway.stage import Stage
from tests.support.gateway_fakes import EOS, Script, output

SCRIPT = Script(text="Héllo, wörld.")
TOKENS = output(SCRIPT)
CHAT: dict[str, Any] = {"model": "bytes", "messages": [{"role": "user", "content": "hi"}]}
COMPLETION: dict[str, Any] = {"model": "bytes", "prompt": "hi", "max_tokens": 50}


@pytest.fixture(autouse=True)
def script(here: Stage) -> None:
    here.verifier.script = SCRIPT


def spelled(tokens: list[int]) -> list[str]:
    return ["<end>" if token == EOS else bytes([token]).decode(errors="replace") for token in tokens]


async def test_a_chat_lists_every_token_with_its_bytes_and_likely_ones(here: Stage) -> None:
    answer = await here.client.chat.completions.create(**CHAT, logprobs=True, top_logprobs=2)
    found = answer.choices[0].logprobs
    assert found is not None
    assert found.content is not None
    assert [each.token for each in found.content] == spelled(TOKENS)
    assert [each.logprob for each in found.content] == [-token / 16 for token in TOKENS]
    assert bytes(byte for each in found.content[:-1] for byte in each.bytes or ()).decode() == SCRIPT.text
    assert {tuple((it.token, it.logprob, *(it.bytes or ())) for it in each.top_logprobs) for each in found.content} == {
        (("\ufffd", 0.0, 128), ("\ufffd", -0.5, 129))
    }
    assert answer.usage is not None
    assert answer.usage.completion_tokens == len(found.content)


async def test_a_streamed_chat_has_the_same_logprobs_beside_the_same_tokens(here: Stage) -> None:
    whole = await here.client.chat.completions.create(**CHAT, logprobs=True, top_logprobs=1)
    stream = await here.client.chat.completions.create(
        **CHAT, logprobs=True, top_logprobs=1, stream=True, extra_body={"return_token_ids": True}
    )
    choices: list[Any] = [chunk.choices[0] async for chunk in stream]
    assert [len(choice.logprobs.content) if choice.logprobs else 0 for choice in choices] == [
        len(choice.token_ids) for choice in choices
    ]
    streamed = [each for choice in choices if choice.logprobs for each in choice.logprobs.content]
    expected = whole.choices[0].logprobs
    assert expected is not None
    assert streamed == expected.content


async def test_completions_have_parallel_lists_and_offsets_into_the_text(here: Stage) -> None:
    answer = await here.client.completions.create(**COMPLETION, logprobs=0)
    choice = answer.choices[0]
    found: Any = choice.logprobs
    assert found.tokens == spelled(TOKENS)
    assert found.token_logprobs == [-token / 16 for token in TOKENS]
    assert found.top_logprobs == [{name: -token / 16} for name, token in zip(spelled(TOKENS), TOKENS, strict=True)]
    # A character's text belongs to its last byte; the end token begins where the text ends.
    widths = [0 if 0xC0 <= token < EOS else int(token < EOS) for token in TOKENS]
    assert found.text_offset == list(accumulate([0, *widths]))[:-1]
    for (first, last), token in zip(pairwise(found.text_offset), found.tokens, strict=False):
        assert choice.text[first:last] in ("", token, "é", "ö")


async def test_a_streamed_completion_goes_on_counting_its_offsets(here: Stage) -> None:
    whole: Any = (await here.client.completions.create(**COMPLETION, logprobs=3)).choices[0].logprobs
    stream = await here.client.completions.create(**COMPLETION, logprobs=3, stream=True)
    parts: list[Any] = [chunk.choices[0].logprobs async for chunk in stream]
    for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
        assert [each for part in parts if part for each in getattr(part, name)] == getattr(whole, name)
    assert parts[-1] is None
    assert "\ufffd" in whole.top_logprobs[0]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_stop_string_cuts_tokens_and_logprobs_alike(here: Stage, stream: bool) -> None:
    asked = COMPLETION | {"logprobs": 1, "stop": ["lo, w"], "stream": stream}
    answer = await here.client.completions.create(**asked, extra_body={"return_token_ids": True})
    choices = [chunk.choices[0] async for chunk in answer] if stream else [answer.choices[0]]
    ids = [token for choice in choices for token in choice.token_ids]
    scores = [each for choice in choices if choice.logprobs for each in choice.logprobs.token_logprobs]
    assert ids == TOKENS[: len("Héllo, w".encode())]
    assert scores == [-token / 16 for token in ids]
    assert "".join(choice.text for choice in choices) == "Hél"


@pytest.mark.parametrize("fields", [{}, {"logprobs": None}])
async def test_nobody_asks_and_nothing_is_computed(here: Stage, fields: dict[str, Any]) -> None:
    answer = await here.client.completions.create(**COMPLETION, **fields)
    assert answer.choices[0].logprobs is None
    assert [call.logprobs for call in here.verifier.calls] == [None]


async def test_logprobs_survive_the_loss_of_a_verifier(here: Stage) -> None:
    here.verifier.failures = [(2, NoVerifier("verifier was lost"))]
    answer: Any = await here.client.completions.create(**COMPLETION, logprobs=2)
    assert len(here.verifier.calls) == 2
    assert answer.choices[0].logprobs.token_logprobs == [-token / 16 for token in TOKENS]


async def test_grpc_packs_them_beside_each_token(here: Stage, channel: grpc.aio.Channel) -> None:
    stub: Any = pb_grpc.GenerationServiceStub(channel)
    request = pb.GenerateRequest(text="hi", logprobs=2)
    answer = await stub.Generate(request)
    assert [token.logprobs.logprob for token in answer.tokens] == [-token / 16 for token in TOKENS]
    for token in answer.tokens:
        assert tokens_from_bytes(token.logprobs.top_ids) == [128, 129]
        assert floats_from_bytes(token.logprobs.top_logprobs, "") == [0.0, -0.5]
    events = [event async for event in stub.StreamGenerate(pb.StreamGenerateRequest(request=request))]
    streamed = [token.logprobs for event in events for token in event.round.tokens]
    assert streamed == [token.logprobs for token in answer.tokens]
    mute = await stub.Generate(pb.GenerateRequest(text="hi"))
    assert not any(token.HasField("logprobs") for token in mute.tokens)


async def test_tokens_are_named_by_their_ids_where_a_caller_asks_for_that(here: Stage) -> None:
    by_id: Any = {"extra_body": {"return_tokens_as_token_ids": True}}
    answer = await here.client.completions.create(**COMPLETION, **by_id, logprobs=1)
    names, found = [f"token_id:{token}" for token in TOKENS], answer.choices[0].logprobs
    assert found is not None
    assert found.tokens == names
    assert [set(each) for each in found.top_logprobs or ()] == [{name, "token_id:128"} for name in names]
    chat = await here.client.chat.completions.create(**CHAT, **by_id, logprobs=True, top_logprobs=1)
    listed = chat.choices[0].logprobs
    assert listed is not None
    assert [(each.token, bytes(each.bytes or ())) for each in listed.content or ()] == [(n, n.encode()) for n in names]
    assert {it.token for each in listed.content or () for it in each.top_logprobs} == {"token_id:128"}
