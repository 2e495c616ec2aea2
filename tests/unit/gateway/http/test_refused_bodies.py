"""Invalid fields of the OpenAI API are refused by name."""

import json
import re
from typing import Any

import pytest

from gateway.http.requests.body import parse_json
from gateway.http.requests.completions import ChatBody, CompletionBody, GenerationBody
from gateway.http.requests.token_bodies import DetokenizeBody, TokenizeBody
from gateway.request import ChatPrompt, TextPrompt
from gateway.tools.values import Message
from specdec.errors import (
    FieldInvalid,
    FieldRequired,
    RequestError,
    TokenOutOfRange,
    UnsupportedParameter,
)
from tests.unit.gateway.http.bodies import CHAT, TREE, chat, completion


@pytest.mark.parametrize(
    ("fields", "error", "param"),
    [
        ({"prompt": ""}, FieldRequired, "prompt"),
        ({"prompt": []}, FieldRequired, "prompt"),
        ({"prompt": [[]]}, FieldRequired, "prompt"),
        ({"prompt": None}, FieldInvalid, "prompt"),
        ({"prompt": {}}, FieldInvalid, "prompt"),
        ({"prompt": [1, "a"]}, FieldInvalid, "prompt"),
        ({"prompt": [1, True]}, FieldInvalid, "prompt"),
        ({"prompt": [["a"]]}, FieldInvalid, "prompt"),
        ({"prompt": [[[1]]]}, FieldInvalid, "prompt"),
        ({"prompt": ["a"] * 257}, FieldInvalid, "prompt"),
        ({"prompt": ["a", 1]}, FieldInvalid, "prompt"),
        ({"prompt": ["a", ""]}, FieldRequired, "prompt"),
        ({"prompt": ["a"] * 129, "n": 2}, FieldInvalid, "n"),
        ({"prompt": ["a", "b"], "session": "0" * 32}, FieldInvalid, "n"),
        ({"prompt": [-1]}, TokenOutOfRange, "prompt"),
        ({"temperature": -0.1}, FieldInvalid, "temperature"),
        ({"temperature": 2.1}, FieldInvalid, "temperature"),
        ({"temperature": "hot"}, FieldInvalid, "temperature"),
        ({"temperature": float("nan")}, FieldInvalid, "temperature"),
        ({"temperature": float("inf")}, FieldInvalid, "temperature"),
        ({"top_p": -0.1}, FieldInvalid, "top_p"),
        ({"top_p": 1.1}, FieldInvalid, "top_p"),
        ({"top_k": -2}, FieldInvalid, "top_k"),
        ({"top_k": 1.5}, FieldInvalid, "top_k"),
        ({"min_p": 2}, FieldInvalid, "min_p"),
        ({"seed": -(2**63) - 1}, FieldInvalid, "seed"),
        ({"seed": 2**63}, FieldInvalid, "seed"),
        ({"presence_penalty": 3}, FieldInvalid, "presence_penalty"),
        ({"frequency_penalty": -3}, FieldInvalid, "frequency_penalty"),
        ({"repetition_penalty": 0}, FieldInvalid, "repetition_penalty"),
        ({"logit_bias": {"a": 1}}, FieldInvalid, "logit_bias"),
        ({"logit_bias": {"1": 101}}, FieldInvalid, "logit_bias"),
        ({"logit_bias": {"1": "x"}}, FieldInvalid, "logit_bias.1"),
        ({"logit_bias": {"9999999999": 1}}, TokenOutOfRange, "logit_bias"),
        ({"max_tokens": 0}, FieldInvalid, "max_tokens"),
        ({"max_tokens": "5"}, FieldInvalid, "max_tokens"),
        ({"max_tokens": True}, FieldInvalid, "max_tokens"),
        ({"min_tokens": -1}, FieldInvalid, "min_tokens"),
        ({"min_tokens": 6, "max_tokens": 5}, FieldInvalid, "min_tokens"),
        ({"stop": [""]}, FieldInvalid, "stop"),
        ({"stop": 5}, FieldInvalid, "stop"),
        ({"stop": ["a"] * 17}, FieldInvalid, "stop"),
        ({"stop": "a" * 257}, FieldInvalid, "stop"),
        ({"stop_token_ids": [-1]}, TokenOutOfRange, "stop_token_ids"),
        ({"stop_token_ids": ["a"]}, FieldInvalid, "stop_token_ids[0]"),
        ({"stream": "yes"}, FieldInvalid, "stream"),
        ({"stream_options": {"include_usage": True}}, FieldInvalid, "stream_options"),
        ({"stream": True, "stream_options": {"x": 1}}, UnsupportedParameter, "stream_options.x"),
        ({"speculation": {"mode": "magic"}}, FieldInvalid, "speculation.mode"),
        ({"speculation": {"gamma": -1}}, FieldInvalid, "speculation.gamma"),
        ({"speculation": {"gamma": "many"}}, FieldInvalid, "speculation.gamma"),
        ({"speculation": {"gamma": {"policy": "egag", "ema": 1}}}, FieldInvalid, "speculation.gamma.ema"),
        ({"speculation": {"gama": 3}}, UnsupportedParameter, "speculation.gama"),
        ({"speculation": {"tree": {"nodes": 0, "width": 1, "depth": 1}}}, FieldInvalid, "speculation.tree.nodes"),
        ({"speculation": {"tree": {"nodes": 8, "depth": 1}}}, FieldRequired, "speculation.tree.width"),
        ({"speculation": {"tree": TREE, "gamma": 2}}, FieldInvalid, "speculation.gamma"),
        ({"speculation": 3}, FieldInvalid, "speculation"),
        ({"n": 0}, FieldInvalid, "n"),
        ({"n": 17}, FieldInvalid, "n"),
        ({"n": "2"}, FieldInvalid, "n"),
        ({"best_of": 2}, UnsupportedParameter, "best_of"),
        ({"echo": True, "max_tokens": 0, "session": "0" * 32}, FieldInvalid, "max_tokens"),
        ({"prompt_logprobs": -1}, FieldInvalid, "prompt_logprobs"),
        ({"prompt_logprobs": 21}, FieldInvalid, "prompt_logprobs"),
        ({"prompt_logprobs": 1, "stream": True}, FieldInvalid, "prompt_logprobs"),
        ({"bad_words": [" "]}, FieldInvalid, "bad_words"),
        ({"bad_words": ["x" * 257]}, FieldInvalid, "bad_words"),
        ({"truncate_prompt_tokens": 0}, FieldInvalid, "truncate_prompt_tokens"),
        ({"truncate_prompt_tokens": -2}, FieldInvalid, "truncate_prompt_tokens"),
        ({"stream": True, "stream_options": {"resumable": 1}}, FieldInvalid, "stream_options.resumable"),
        ({"skip_special_tokens": 0}, FieldInvalid, "skip_special_tokens"),
        ({"include_stop_str_in_output": "yes"}, FieldInvalid, "include_stop_str_in_output"),
        ({"logprobs": -1}, FieldInvalid, "logprobs"),
        ({"logprobs": 21}, FieldInvalid, "logprobs"),
        ({"logprobs": True}, FieldInvalid, "logprobs"),
        ({"top_logprobs": 2}, UnsupportedParameter, "top_logprobs"),
        ({"allowed_token_ids": []}, FieldInvalid, "allowed_token_ids"),
        ({"allowed_token_ids": [1.5]}, FieldInvalid, "allowed_token_ids[0]"),
        ({"allowed_token_ids": [-1]}, TokenOutOfRange, "allowed_token_ids"),
        ({"banned_token_ids": [2**31]}, TokenOutOfRange, "banned_token_ids"),
        ({"banned_token_ids": "all"}, FieldInvalid, "banned_token_ids"),
        ({"speculation": {"lenience": 0}}, FieldInvalid, "speculation.lenience"),
        ({"speculation": {"lenience": 1.01}}, FieldInvalid, "speculation.lenience"),
        ({"speculation": {"lenience": float("nan")}}, FieldInvalid, "speculation.lenience"),
        ({"speculation": {"lenience": "some"}}, FieldInvalid, "speculation.lenience"),
        ({"suffix": "x"}, UnsupportedParameter, "suffix"),
        ({"watermarking": True}, UnsupportedParameter, "watermarking"),
        ({"truncation_side": "right"}, UnsupportedParameter, "truncation_side"),
        ({"thinking_token_budget": 5}, UnsupportedParameter, "thinking_token_budget"),
        ({"session_id": "s"}, UnsupportedParameter, "session_id"),
        ({"return_tokens_as_token_ids": 1}, FieldInvalid, "return_tokens_as_token_ids"),
        ({"priority": 3}, UnsupportedParameter, "priority"),
        ({"service_tier": "gold"}, FieldInvalid, "service_tier"),
        ({"cache_salt": ""}, FieldInvalid, "cache_salt"),
        ({"cache_salt": "a" * 257}, FieldInvalid, "cache_salt"),
        ({"cache_salt": 3}, FieldInvalid, "cache_salt"),
        ({"temprature": 1}, UnsupportedParameter, "temprature"),
        ({"model": 3}, FieldInvalid, "model"),
        ({"metadata": {"a": float("nan")}}, FieldInvalid, "metadata.a"),
    ],
)
def test_a_wrong_field_is_refused_by_name(fields: dict[str, Any], error: type[RequestError], param: str) -> None:
    with pytest.raises(error) as refused:
        completion(**fields)
    assert type(refused.value) is error
    assert refused.value.param == param


@pytest.mark.parametrize(
    ("fields", "error", "param"),
    [
        ({"messages": []}, FieldRequired, "messages"),
        ({"messages": "hi"}, FieldInvalid, "messages"),
        ({"messages": [{"role": "user"}]}, FieldRequired, "messages[0].content"),
        ({"messages": [{"content": "x"}]}, FieldRequired, "messages[0].role"),
        ({"messages": [{"role": "wizard", "content": "x"}]}, FieldInvalid, "messages[0].role"),
        ({"messages": [{"role": "user", "content": None}]}, FieldRequired, "messages[0].content"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, UnsupportedParameter, "messages"),
        ({"messages": [{"role": "user", "content": [{"text": "x"}]}]}, FieldInvalid, "messages"),
        ({"messages": [{"role": "user", "content": "x", "name": 1}]}, FieldInvalid, "messages[0].name"),
        ({"messages": [{"role": "user", "content": "x", "wrong": 1}]}, UnsupportedParameter, "messages[0].wrong"),
        (
            {"messages": [{"role": "assistant", "content": "x", "tool_calls": [1]}]},
            FieldInvalid,
            "messages[0].tool_calls[0]",
        ),
        ({"tools": [{"type": "function"}]}, FieldRequired, "tools[0].function"),
        ({"tool_choice": "required"}, FieldRequired, "tools"),
        ({"logprobs": 2}, FieldInvalid, "logprobs"),
        ({"top_logprobs": 2}, FieldInvalid, "top_logprobs"),
        ({"logprobs": False, "top_logprobs": 2}, FieldInvalid, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, FieldInvalid, "top_logprobs"),
        ({"prediction": {"type": "content"}}, FieldRequired, "prediction.content"),
        ({"prediction": {"type": "text", "content": "x"}}, FieldInvalid, "prediction.type"),
        ({"prediction": {"type": "content", "content": [{"type": "image"}]}}, UnsupportedParameter, "prediction"),
        ({"reasoning_effort": "most"}, FieldInvalid, "reasoning_effort"),
        ({"thinking_token_budget": -2}, FieldInvalid, "thinking_token_budget"),
        ({"include_reasoning": "no"}, FieldInvalid, "include_reasoning"),
        ({"documents": ["x"]}, FieldInvalid, "documents[0]"),
        ({"documents": [{"text": 1}]}, FieldInvalid, "documents[0].text"),
        ({"return_prompt_text": True}, UnsupportedParameter, "return_prompt_text"),
        ({"modalities": ["audio"]}, UnsupportedParameter, "modalities[0]"),
    ],
)
def test_a_wrong_field_of_a_chat_is_refused_by_name(
    fields: dict[str, Any], error: type[RequestError], param: str
) -> None:
    with pytest.raises(error) as refused:
        chat(**fields)
    assert type(refused.value) is error
    assert refused.value.param == param


INTERNALS = re.compile(
    r"literal\[|function-|tagged-union|lax-or-strict|constrained|model_type|\.(str|int|float|bool)\b"
)
"""Validator names for members of unions, which no caller wrote."""


@pytest.mark.parametrize("body", [CompletionBody, ChatBody])
def test_no_refusal_has_names_that_only_the_validator_knows(body: type[GenerationBody]) -> None:
    wrong = ("maybe", 3.5, {"a": 1}, [{"x": 1}], [1, "a"], {"type": "zap"}, {"type": "function", "function": 3}, True)
    least = {"model": "m", "prompt": "x"} if body is CompletionBody else {"model": "m", "messages": []}
    for name, value in ((field.alias or name, value) for name, field in body.model_fields.items() for value in wrong):
        message = ""
        try:
            body.parse({**least, name: value})
        except RequestError as error:
            message = error.message
        assert not INTERNALS.search(message), (name, value)


def test_a_body_without_a_prompt_is_refused() -> None:
    for body in (CompletionBody, ChatBody):
        with pytest.raises(FieldRequired) as refused:
            body.parse({"model": "m"})
        assert refused.value.param == ("prompt" if body is CompletionBody else "messages")


def test_a_misspelt_field_is_told_from_the_right_one() -> None:
    with pytest.raises(UnsupportedParameter, match="did you mean temperature"):
        completion(temprature=1)


def test_one_thing_is_tokenized() -> None:
    assert TokenizeBody.parse({"prompt": "hi"}).input() == TextPrompt("hi")
    assert TokenizeBody.parse({"messages": CHAT["messages"]}).input() == ChatPrompt((Message("user", "hi"),))
    for body in ({}, {"prompt": "a", "messages": []}, {"prompt": ""}, {"messages": []}):
        with pytest.raises(FieldRequired):
            TokenizeBody.parse(body).input()
    with pytest.raises(FieldInvalid):
        TokenizeBody.parse({"messages": [{"role": "wizard", "content": "x"}]}).input()
    with pytest.raises(FieldInvalid):
        DetokenizeBody.parse({"tokens": [1.5]})


def test_half_a_surrogate_pair_is_refused_wherever_it_is() -> None:
    for body, param in (
        ({"a": "\ud800"}, "a"),
        ({"a": ["x", {"b": "\udfff"}]}, "a[1].b"),
        ({"\ud800": 1}, ""),
    ):
        with pytest.raises(FieldInvalid) as refused:
            parse_json(json.dumps(body).encode())
        assert refused.value.param == param
    assert parse_json(rb'{"a": "\ud83d\ude00"}') == {"a": "😀"}
