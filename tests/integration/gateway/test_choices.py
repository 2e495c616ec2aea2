"""`n` choices, read by OpenAI's client."""

from collections import defaultdict
from typing import Any

import openai
import pytest

from gateway.admission import AT_ONCE
from gateway.request import MAX_CHOICES
from specdec.errors import InternalError
from tests.integration.gateway.stage import Stage
from tests.support.gateway_fakes import Script, drained, output, until

TEXT = Script().text
CHAT: dict[str, Any] = {"model": "bytes", "messages": [{"role": "user", "content": "hi"}]}
COMPLETION: dict[str, Any] = {"model": "bytes", "prompt": "Say it", "max_tokens": 50}


async def test_a_whole_answer_has_n_choices_and_counts_the_prompt_once(here: Stage) -> None:
    answer: Any = await here.client.completions.create(**COMPLETION, n=3, seed=40, logprobs=0)
    assert [(choice.index, choice.text, choice.finish_reason) for choice in answer.choices] == [
        (index, TEXT, "stop") for index in range(3)
    ]
    assert [choice.logprobs.text_offset[:3] for choice in answer.choices] == [[0, 1, 2]] * 3
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (6, 3 * 14)
    assert answer.metrics["speculative_decoding"]["num_spec_steps"] == 3 * 4
    assert answer.seed == 40
    assert sorted(call.sampling.seed for call in here.verifier.calls) == [40, 41, 42]
    assert len({call.session_id for call in here.verifier.calls}) == 3


async def test_a_chat_has_n_turns(here: Stage) -> None:
    answer = await here.client.chat.completions.create(**CHAT, n=2)
    assert [(choice.index, choice.message.content) for choice in answer.choices] == [(0, TEXT), (1, TEXT)]


@pytest.mark.parametrize("include_usage", [False, True])
async def test_a_streamed_chat_tells_its_choices_apart(here: Stage, include_usage: bool) -> None:
    stream = await here.client.chat.completions.create(
        **CHAT,
        n=3,
        stream=True,
        stream_options={"include_usage": include_usage},
        extra_body={"return_token_ids": True},
    )
    chunks: list[Any] = [chunk async for chunk in stream]
    assert len({(chunk.id, chunk.created) for chunk in chunks}) == 1
    by_choice = defaultdict(list)
    for chunk in chunks[: -1 if include_usage else None]:
        (choice,) = chunk.choices
        by_choice[choice.index].append(choice)
    assert sorted(by_choice) == [0, 1, 2]
    for choices in by_choice.values():
        assert choices[0].delta.role == "assistant"
        assert [choice.delta.role for choice in choices[1:]] == [None] * (len(choices) - 1)
        assert "".join(choice.delta.content or "" for choice in choices) == TEXT
        assert [token for choice in choices for token in choice.token_ids] == output(Script())
        assert [choice.finish_reason for choice in choices] == [None] * (len(choices) - 1) + ["stop"]
    if include_usage:
        assert (chunks[-1].choices, chunks[-1].usage.completion_tokens) == ([], 3 * 14)
        assert chunks[-1].metrics["speculative_decoding"]["num_spec_steps"] == 3 * 4


async def test_a_streamed_completion_counts_offsets_for_each_choice(here: Stage) -> None:
    stream = await here.client.completions.create(
        **COMPLETION, n=2, logprobs=0, stream=True, extra_body={"return_token_ids": True}
    )
    offsets, prompts = defaultdict(list), defaultdict(int)
    async for chunk in stream:
        choice: Any = chunk.choices[0]
        offsets[choice.index] += choice.logprobs.text_offset if choice.logprobs else []
        prompts[choice.index] += hasattr(choice, "prompt_token_ids")
    assert offsets == {index: [*range(13), 13] for index in (0, 1)}
    assert prompts == {0: 1, 1: 1}


@pytest.mark.parametrize("stream", [False, True])
async def test_what_fails_one_choice_fails_the_request_and_frees_the_others(here: Stage, stream: bool) -> None:
    here.verifier.script = Script(text="x" * 40, pause=0.01)
    here.verifier.failures = [(2, InternalError("the model failed on this sequence"))]

    async def read() -> None:
        answer: Any = await here.client.completions.create(**COMPLETION, n=3, stream=stream)
        await drained(answer, lambda _: None)

    with pytest.raises(openai.APIError, match="the model failed"):
        await read()
    await until(lambda: all(session.owner == "" for session in here.store.sessions.values()))
    assert len(here.store.sessions) == 3


async def test_a_client_that_leaves_ends_all_choices(here: Stage) -> None:
    here.verifier.script = Script(text="x" * 200, pause=0.01)
    stream = await here.client.completions.create(**COMPLETION | {"max_tokens": 200}, n=2, stream=True)
    async for _ in stream:
        break
    await stream.close()
    await until(lambda: here.verifier.cancelled == 2)


async def test_a_request_of_very_many_prompts_runs_few_of_them_at_once(here: Stage) -> None:
    here.verifier.script = Script(pause=0.001)
    prompts = [f"{index}: " for index in range(100)]
    answer: Any = await here.client.completions.create(model="bytes", prompt=prompts, echo=True)
    assert [(each.index, each.text) for each in answer.choices] == [
        (index, prompt + TEXT) for index, prompt in enumerate(prompts)
    ]
    assert here.verifier.most_running == AT_ONCE
    answer = await here.client.completions.create(model="bytes", prompt=prompts, logprobs=1)
    assert {"".join(each.logprobs.tokens[:-1]) for each in answer.choices} == {TEXT}


@pytest.mark.parametrize(("prompts", "param"), [(MAX_CHOICES + 1, "prompt"), (MAX_CHOICES // 2 + 1, "n")])
async def test_more_choices_are_refused_by_name(here: Stage, prompts: int, param: str) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        await here.client.completions.create(model="bytes", prompt=["x"] * prompts, n=2)
    assert refused.value.param == param


@pytest.mark.parametrize("n", [0, 17, True, "2"])
async def test_other_numbers_are_refused_by_name(here: Stage, n: Any) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        await here.client.completions.create(**COMPLETION, n=n)
    assert refused.value.param == "n"
