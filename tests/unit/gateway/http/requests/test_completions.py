"""Every field of the OpenAI API takes effect, and fields without effect are accepted."""

from typing import Any

import pytest

from gateway.http.requests.completions import CompletionBody
from gateway.http.requests.token_bodies import TokenizeBody
from gateway.request import ChatPrompt, TextPrompt, TokenPrompt
from gateway.tools.values import Message
from specdec.errors import FieldInvalid
from specdec.planning.gamma_policy import GammaPolicy, PolicyKind
from specdec.rules.speculation import Mode, TreeOptions
from tests.unit.gateway.http.bodies import CHAT, COMPLETION, TREE, chat, completion


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
    assert (request.lenience, completion().lenience, completion(speculation={}).lenience) == (0.5, None, None)


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


def test_what_is_shown_beside_the_text_is_asked_for() -> None:
    plain, shown = completion(), completion(skip_special_tokens=False, include_stop_str_in_output=True)
    assert (plain.shows_special, plain.shows_stop) == (False, False)
    assert (shown.shows_special, shown.shows_stop) == (True, True)


@pytest.mark.parametrize(
    "fields",
    [
        {"n": 1, "best_of": 1, "echo": False, "logprobs": None, "suffix": None},
        {"suffix": "", "priority": 0, "top_k": -1, "use_beam_search": False},
        {"watermarking": False, "truncation_side": "left", "routed_experts_prompt_start": 0, "stream_interval": 4},
        {"request_id": "r", "mm_payload": "none", "return_mm_kwargs": False, "return_token_offsets": True},
        {"thinking_token_budget": -1, "service_tier": "scale"},
        {"skip_special_tokens": True, "include_stop_str_in_output": False, "add_special_tokens": True},
        {"spaces_between_special_tokens": False},
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
        {"include_reasoning": True, "add_special_tokens": False, "documents": [], "thinking_token_budget": -1},
        {"return_prompt_text": False, "request_id": "r", "prompt_cache_options": {"a": 1}},
        {"reasoning_effort": None, "logprobs": False, "n": 1, "add_generation_prompt": True},
    ],
)
def test_values_that_do_nothing_are_taken_in_chats(fields: dict[str, Any]) -> None:
    assert isinstance(chat(**fields).prompt, ChatPrompt)


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


def test_a_chat_may_begin_like_a_text_and_have_documents() -> None:
    documents = [{"title": "a", "text": "b"}, {"text": "c"}]
    fields = {"add_special_tokens": True, "documents": documents}
    expected = ChatPrompt((Message("user", "hi"),), documents=tuple(documents), special=True)
    assert chat(**fields).prompt == expected
    assert TokenizeBody.parse({"messages": CHAT["messages"], **fields}).input() == expected


def test_the_tools_of_a_conversation_are_tokenized() -> None:
    tool = {"type": "function", "function": {"name": "f"}}
    prompt = TokenizeBody.parse({"messages": CHAT["messages"], "tools": [tool]}).input()
    assert isinstance(prompt, ChatPrompt)
    assert [each.name for each in prompt.tools] == ["f"]


def test_thinking_is_hidden_where_a_caller_asks_for_that() -> None:
    shown, hidden = chat(), chat(include_reasoning=False)
    assert (shown.shows_thinking, shown.reading.shown) == (True, True)
    assert (hidden.shows_thinking, hidden.reading.shown) == (False, False)


@pytest.mark.parametrize("budget", [{"thinking_token_budget": -1}, {"thinking_budget": None}, {}])
def test_a_budget_of_minus_one_is_none(budget: dict[str, Any]) -> None:
    assert chat(**budget).thinking_budget is None


def test_digests_tell_all_prompts_apart() -> None:
    long = [1] * 20_000
    prompts: list[object] = ["a", "b", [1, 2], [2, 1], [12], ["a", "b"], ["b", "a"], [[1], [2]], [[1, 2]], long]
    prompts += [[*long[:-1], 2], [*long, 1], [long, long]]
    read = [CompletionBody.parse({"prompt": each, "seed": 1}).request("r") for each in prompts]
    assert len({each.digest for each in read}) == len(prompts) - 1, "[[1, 2]] is [1, 2]"
    assert read[2].digest == read[8].digest
