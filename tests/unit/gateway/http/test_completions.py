"""Every field of the OpenAI API is honoured, or refused by name."""

import json
from typing import Any

import pytest

from gateway.http.body import parse_json
from gateway.http.completions import ChatBody, CompletionBody
from gateway.http.token_bodies import DetokenizeBody, TokenizeBody
from gateway.request import ChatPrompt, GenerationRequest, TextPrompt, TokenPrompt
from gateway.tools.conversation import Message
from specdec.errors import (
    FieldInvalid,
    FieldRequired,
    RequestError,
    TokenOutOfRange,
    UnsupportedParameter,
)
from specdec.rules.gamma_policy import GammaPolicy, PolicyKind
from specdec.rules.params import Mode
from specdec.rules.tree_options import TreeOptions

COMPLETION: dict[str, Any] = {"model": "m", "prompt": "Say it"}
TREE = {"nodes": 8, "width": 3, "depth": 4}
CHAT: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}


def completion(**fields: Any) -> GenerationRequest:
    return CompletionBody.parse(COMPLETION | fields).request("r-1")


def chat(**fields: Any) -> GenerationRequest:
    return ChatBody.parse(CHAT | fields).request("r-1")


def test_every_sampling_field_arrives() -> None:
    fields = {
        "temperature": 0.5,
        "top_p": 0.9,
        "min_p": 0.1,
        "seed": 5,
        "presence_penalty": 0.3,
        "frequency_penalty": -0.3,
        "repetition_penalty": 1.2,
        "min_tokens": 2,
    }
    request = completion(**fields, top_k=7, logit_bias={"3": -100}, max_tokens=9)
    assert {name: getattr(request.sampling, name) for name in fields} == fields
    assert (request.sampling.top_k, dict(request.sampling.logit_bias)) == (7, {3: -100.0})
    assert (request.max_tokens, request.request_id, request.model) == (9, "r-1", "m")


def test_defaults_are_openais() -> None:
    request = completion()
    sampling = request.sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.repetition_penalty) == (1.0, 1.0, 0, 1.0)
    assert (request.max_tokens, request.cap_tokens) == (None, 16)
    assert (request.mode, request.gamma, request.ignore_eos, request.stop) == (None, None, False, ())
    assert (chat().max_tokens, chat().cap_tokens) == (None, None)


def test_a_seed_is_drawn_when_there_is_none_and_fits_a_json_number() -> None:
    seeds = {completion().sampling.seed for _ in range(8)}
    assert len(seeds) == 8
    assert max(seeds) < 2**53


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("Say it", TextPrompt("Say it")),
        (["Say it"], TextPrompt("Say it")),
        ([1, 2], TokenPrompt((1, 2))),
        ([[1, 2]], TokenPrompt((1, 2))),
    ],
)
def test_a_prompt_is_text_or_ids(prompt: Any, expected: Any) -> None:
    assert completion(prompt=prompt).prompt == expected


def test_speculation_and_vllms_extras_arrive() -> None:
    body = CompletionBody.parse(
        COMPLETION
        | {
            "speculation": {"mode": "coupled", "gamma": 4},
            "ignore_eos": True,
            "stop_token_ids": [5],
            "return_token_ids": True,
        }
    )
    request = body.request("r-1")
    assert (request.mode, request.gamma, request.ignore_eos, request.stop_token_ids) == (Mode.COUPLED, 4, True, (5,))
    assert body.return_token_ids is True
    assert completion(speculation={"gamma": "auto"}).gamma is None
    assert completion(speculation={"gamma": 0}).gamma == 0
    policy = {"policy": "egag", "min": 1, "max": 8, "ema": 0.25}
    assert completion(speculation={"gamma": policy}).policy == GammaPolicy(PolicyKind.EGAG, 1, 8, 0.25)


def test_masks_and_lenience_arrive() -> None:
    request = completion(allowed_token_ids=[5, 6], banned_token_ids=[6], speculation={"lenience": 0.5})
    assert (request.sampling.allowed_token_ids, request.sampling.banned_token_ids) == ((5, 6), (6,))
    assert (request.lenience, completion().lenience, completion(speculation={}).lenience) == (0.5, 1.0, 1.0)


def test_what_drafts_and_a_prediction_arrive() -> None:
    assert completion(speculation={"drafter": "ngram"}).drafter == "ngram"
    assert completion(speculation={"tree": TREE}).tree == TreeOptions(8, 3, 4)
    assert (completion().drafter, chat().prediction) == ("", "")
    assert chat(prediction={"type": "content", "content": "as before"}).prediction == "as before"
    parts = [{"type": "text", "text": "as "}, {"type": "text", "text": "before"}]
    assert chat(prediction={"type": "content", "content": parts}).prediction == "as before"


def test_logprobs_are_a_number_in_completions_and_two_fields_in_chats() -> None:
    assert [completion(**fields).logprobs for fields in ({}, {"logprobs": 0}, {"logprobs": 20})] == [None, 0, 20]
    asked = ({}, {"logprobs": False, "top_logprobs": 0}, {"logprobs": True}, {"logprobs": True, "top_logprobs": 7})
    assert [chat(**fields).logprobs for fields in asked] == [None, None, 0, 7]


def test_stop_is_a_string_or_several() -> None:
    assert completion(stop="a").stop == ("a",)
    assert completion(stop=["a", "b"]).stop == ("a", "b")
    assert completion(stop=None).stop == ()


def test_messages_become_a_chat() -> None:
    request = chat(
        messages=[
            {"role": "developer", "content": "Be brief."},
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
            {"role": "assistant", "content": "c", "refusal": None, "tool_calls": [], "annotations": []},
        ]
    )
    assert request.prompt == ChatPrompt(
        (Message("system", "Be brief."), Message("user", "ab"), Message("assistant", "c"))
    )


def test_both_names_of_max_tokens_are_taken() -> None:
    assert chat(max_completion_tokens=5).max_tokens == 5
    assert chat(max_tokens=5).max_tokens == 5
    assert chat(max_tokens=5, max_completion_tokens=5).max_tokens == 5
    with pytest.raises(FieldInvalid) as refused:
        chat(max_tokens=5, max_completion_tokens=6)
    assert refused.value.param == "max_completion_tokens"


@pytest.mark.parametrize(
    "fields",
    [
        {"n": 1, "best_of": 1, "echo": False, "logprobs": None, "suffix": None},
        {"suffix": "", "priority": 0, "top_k": -1, "use_beam_search": False},
        {"skip_special_tokens": True, "include_stop_str_in_output": False, "add_special_tokens": True},
        {"user": "me", "metadata": {"a": "b"}, "store": True, "service_tier": "auto", "prompt_cache_key": "k"},
        {"temperature": None, "max_tokens": None, "stop": None, "seed": None, "stream": None, "stream_options": None},
        {"temperature": 1},
        {"stream": True, "stream_options": {"include_usage": True, "include_obfuscation": False}},
    ],
)
def test_values_that_do_nothing_are_taken(fields: dict[str, Any]) -> None:
    assert completion(**fields).sampling.top_k == 0


@pytest.mark.parametrize(
    "fields",
    [
        {"tools": [], "tool_choice": "none", "functions": [], "parallel_tool_calls": True, "top_logprobs": 0},
        {"response_format": {"type": "text"}, "modalities": ["text"], "audio": None},
        {"reasoning_effort": "none", "chat_template_kwargs": {}},
        {"reasoning_effort": None, "logprobs": False, "n": 1, "add_generation_prompt": True},
    ],
)
def test_values_that_do_nothing_are_taken_in_chats(fields: dict[str, Any]) -> None:
    assert isinstance(chat(**fields).prompt, ChatPrompt)


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
        ({"prompt": ["a"] * 17}, FieldInvalid, "prompt"),
        ({"prompt": ["a", 1]}, FieldInvalid, "prompt"),
        ({"prompt": ["a", ""]}, FieldRequired, "prompt"),
        ({"prompt": ["a", "b"], "n": 9}, FieldInvalid, "n"),
        ({"prompt": ["a", "b"], "session": "0" * 32}, FieldInvalid, "n"),
        ({"prompt": [-1]}, TokenOutOfRange, "prompt"),
        ({"temperature": -0.1}, FieldInvalid, "temperature"),
        ({"temperature": 2.1}, FieldInvalid, "temperature"),
        ({"temperature": "hot"}, FieldInvalid, "temperature"),
        ({"temperature": float("nan")}, FieldInvalid, "temperature"),
        ({"temperature": float("inf")}, FieldInvalid, "temperature"),
        ({"top_p": 0}, FieldInvalid, "top_p"),
        ({"top_p": 1.1}, FieldInvalid, "top_p"),
        ({"top_k": -2}, FieldInvalid, "top_k"),
        ({"top_k": 1.5}, FieldInvalid, "top_k"),
        ({"min_p": 2}, FieldInvalid, "min_p"),
        ({"seed": -1}, FieldInvalid, "seed"),
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
        ({"echo": True, "logprobs": 0}, UnsupportedParameter, "echo"),
        ({"truncate_prompt_tokens": 0}, FieldInvalid, "truncate_prompt_tokens"),
        ({"truncate_prompt_tokens": -2}, FieldInvalid, "truncate_prompt_tokens"),
        ({"stream": True, "stream_options": {"resumable": 1}}, FieldInvalid, "stream_options.resumable"),
        ({"skip_special_tokens": False}, UnsupportedParameter, "skip_special_tokens"),
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
        ({"messages": [{"role": "user", "content": "x", "name": "n"}]}, UnsupportedParameter, "messages[0].name"),
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
        ({"reasoning_effort": "low"}, UnsupportedParameter, "reasoning_effort"),
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


def test_each_prompt_of_a_list_has_its_choices() -> None:
    request = completion(prompt=["a", [1, 2]], n=2, seed=5)
    assert request.number == 4
    assert [(each.prompt, each.sampling.seed) for each in request.choices()] == [
        (TextPrompt("a"), 5),
        (TextPrompt("a"), 6),
        (TokenPrompt((1, 2)), 5),
        (TokenPrompt((1, 2)), 6),
    ]
    assert {each.number for each in request.choices()} == {4}
    assert len({each.digest for each in request.choices()}) == 4


def test_a_chat_template_gets_the_callers_arguments() -> None:
    assert chat(chat_template_kwargs={"thinking": True}).prompt == ChatPrompt(
        (Message("user", "hi"),), template_arguments={"thinking": True}
    )
    assert TokenizeBody.parse({"messages": CHAT["messages"], "chat_template_kwargs": {"a": 1}}).input() == ChatPrompt(
        (Message("user", "hi"),), template_arguments={"a": 1}
    )


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
