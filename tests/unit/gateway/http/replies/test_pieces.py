"""A long answer is written in pieces that, joined, are what pydantic writes at once."""

import gc
import json
import math
from typing import Any

import pytest
from pydantic import BaseModel
from pydantic_core import to_json

from gateway.http.replies.logprobs import chat_logprobs, completion_logprobs
from gateway.http.replies.objects import AssistantMessage, ChatChoice, ChatCompletion, Completion, CompletionChoice
from gateway.http.replies.pieces import json_pieces, object_pieces
from gateway.http.replies.prompt_logprobs import prompt_logprobs
from gateway.text.output import OutputToken
from specdec.rules.speculation import Origin
from specdec.sampling.logprobs import TokenLogprobs
from tests.support.gateway_fakes import ByteTokenizer

LONGEST = 32 * 1024
"""Bytes of the longest piece of these answers."""
HEAD: dict[str, Any] = {"id": "a", "created": 1, "model": "m", "system_fingerprint": "f", "service_tier": "default"}


def tokens(count: int, own: float = -math.inf) -> list[OutputToken]:
    top = tuple((token, -token / 8) for token in range(20))
    return [OutputToken(97, "a\u2028é", Origin.PLAIN, TokenLogprobs(own, top)) for _ in range(count)]


def chat(count: int) -> ChatCompletion:
    message = AssistantMessage(role="assistant", content="a", refusal=None)
    scores = chat_logprobs(tokens(count), ByteTokenizer().token_bytes)
    choice = ChatChoice(index=0, message=message, logprobs=scores, finish_reason="stop")
    return ChatCompletion(**HEAD, object="chat.completion", choices=[choice, choice])


def completion(count: int) -> Completion:
    spelled = ByteTokenizer().token_bytes
    scored = [TokenLogprobs(-0.5, ((1, -math.inf), (2, -1e-7)), 3)] * count
    choice = CompletionChoice(
        index=0,
        text="a",
        logprobs=completion_logprobs(tokens(count, -0.5), spelled, 0),
        finish_reason="length",
        prompt_logprobs=prompt_logprobs([97] * (count + 1), scored, spelled),
        token_ids=[97] * count,
    )
    return Completion(**HEAD, object="text_completion", choices=[choice], prompt_token_ids=[97] * count)


@pytest.mark.parametrize("exclude_unset", [True, False])
@pytest.mark.parametrize("count", [0, 1, 16, 17, 64, 65, 300])
@pytest.mark.parametrize("make", [chat, completion])
def test_the_pieces_are_what_pydantic_writes(make: Any, count: int, exclude_unset: bool) -> None:
    answer: BaseModel = make(count)
    written = b"".join(json_pieces(answer, exclude_unset))
    assert to_json(json.loads(written)) == written
    read = type(answer).model_validate_json(written)
    choice: Any = read.choices[0]  # type: ignore[attr-defined]
    assert len(choice.logprobs.content if make is chat else choice.logprobs.tokens) == count if count else True
    plain = read.model_copy(update={"choices": []})
    rest = answer.model_copy(update={"choices": []})
    assert plain.model_dump_json(exclude_unset=exclude_unset) == rest.model_dump_json(exclude_unset=exclude_unset)


@pytest.mark.parametrize("exclude_unset", [True, False])
@pytest.mark.parametrize("count", [0, 1, 16, 17, 64, 65])
def test_the_pieces_of_models_and_objects_are_what_pydantic_writes(count: int, exclude_unset: bool) -> None:
    models = [AssistantMessage(role="assistant", content=str(each), refusal=None) for each in range(count)]
    plain = [each.model_dump(exclude_unset=exclude_unset) for each in models]
    assert b"".join(json_pieces(models, exclude_unset)) == to_json(plain)
    pieces = object_pieces([("a", models), ("b", {"c": None})], exclude_unset)
    assert b"".join(pieces) == to_json({"a": plain, "b": {"c": None}})
    assert b"".join(object_pieces([])) == b"{}"


@pytest.mark.parametrize("make", [chat, completion])
def test_a_long_answer_has_no_objects_for_each_token(make: Any) -> None:
    make(1)
    gc.collect()
    before = len(gc.get_objects())
    answer = make(3000)
    made = len(gc.get_objects()) - before
    assert answer
    assert made < 4 * 3000, "as many as the tokens themselves and their log probabilities"


@pytest.mark.parametrize("make", [chat, completion])
def test_no_piece_of_a_long_answer_is_long(make: Any) -> None:
    assert max(map(len, json_pieces(make(3000), True))) <= LONGEST


def test_a_model_without_set_fields_is_an_empty_object() -> None:
    class Nothing(BaseModel):
        value: int | None = None

    assert b"".join(json_pieces([Nothing()], True)) == b"[{}]"
