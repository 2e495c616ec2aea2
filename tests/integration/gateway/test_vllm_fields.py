"""Fields of vLLM's clients beyond OpenAI's, and several prompts in one request."""

import asyncio
from typing import Any

import openai
import pytest

from tests.integration.gateway.replicas import LONG, Heard, Replica
from tests.integration.gateway.stage import Stage
from tests.support.gateway_fakes import CONTEXT, Script

TEXT = Script().text
BOTH: Any = ["Say it", list(b"Say that")]


async def test_each_prompt_of_a_list_has_its_choices_in_order(here: Stage) -> None:
    answer: Any = await here.client.completions.create(
        model="bytes", prompt=BOTH, n=2, seed=7, max_tokens=50, extra_body={"return_token_ids": True}
    )
    assert [(choice.index, choice.text) for choice in answer.choices] == [(index, TEXT) for index in range(4)]
    assert [bytes(choice.prompt_token_ids) for choice in answer.choices] == [b"Say it"] * 2 + [b"Say that"] * 2
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (6 + 8, 4 * 14)
    called = sorted((bytes(call.tokens), call.sampling.seed) for call in here.verifier.calls)
    assert called == [(b"Say it", 7), (b"Say it", 8), (b"Say that", 7), (b"Say that", 8)]


async def test_a_stream_of_several_prompts_goes_on_elsewhere(pair: list[Replica]) -> None:
    heard = Heard()
    await pair[0].stream(heard, enough=10, prompt=["one", "two", "three"])
    await pair[1].resume(heard)
    assert (heard.texts, heard.done) == (dict.fromkeys(range(3), LONG.text), True)


@pytest.mark.parametrize("stream", [False, True])
async def test_an_echo_begins_with_the_prompt(here: Stage, stream: bool) -> None:
    answer: Any = await here.client.completions.create(model="bytes", prompt=BOTH, echo=True, stream=stream)
    texts = {0: "", 1: ""}
    for choice in [each async for chunk in answer for each in chunk.choices] if stream else answer.choices:
        texts[choice.index] += choice.text
    assert texts == {0: f"Say it{TEXT}", 1: f"Say that{TEXT}"}


@pytest.mark.parametrize(("keep", "kept"), [(4, b"y it"), (99, b"Say it"), (-1, b"Say it")])
@pytest.mark.parametrize("prompt", ["Say it", list(b"Say it")])
async def test_only_the_last_tokens_of_a_prompt_are_used(here: Stage, prompt: Any, keep: int, kept: bytes) -> None:
    more = {"truncate_prompt_tokens": keep}
    answer: Any = await here.client.completions.create(model="bytes", prompt=prompt, extra_body=more)
    assert answer.usage.prompt_tokens == len(kept)
    assert bytes(here.verifier.calls[-1].tokens) == kept


async def test_a_prompt_that_is_cut_to_the_room_leaves_room_for_the_answer(here: Stage) -> None:
    long, more = "x" * 3 * CONTEXT, {"truncate_prompt_tokens": -1}
    with pytest.raises(openai.BadRequestError, match="context"):
        await here.client.completions.create(model="bytes", prompt=long, max_tokens=6)
    answer: Any = await here.client.completions.create(model="bytes", prompt=long, max_tokens=6, extra_body=more)
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (CONTEXT - 6, 6)


async def test_every_chunk_can_have_the_counts_so_far(here: Stage) -> None:
    stream: Any = await here.client.completions.create(
        model="bytes",
        prompt=BOTH,
        stream=True,
        stream_options={"include_usage": True, "continuous_usage_stats": True},  # type: ignore[typeddict-unknown-key]
    )
    usages = [chunk.usage async for chunk in stream]
    assert {usage.prompt_tokens for usage in usages} == {6 + 8}
    counts = [usage.completion_tokens for usage in usages]
    assert counts == sorted(counts)
    assert (counts[0], counts[-1]) == (4, 28)


async def test_an_answer_says_how_much_of_the_prompt_was_computed_before(here: Stage) -> None:
    here.verifier.script = Script(cached=3)
    answer = await here.client.completions.create(model="bytes", prompt=["Say it", "Say"], n=2)
    assert answer.usage is not None
    assert answer.usage.prompt_tokens_details is not None
    assert answer.usage.prompt_tokens_details.cached_tokens == 3 + 3


async def test_under_one_key_a_list_of_prompts_runs_once_and_another_is_refused(
    pair: list[Replica],
) -> None:
    key = {"idempotency-key": "several prompts"}
    answers = await asyncio.gather(*(replica.post(headers=key, prompt=["a", "b"], max_tokens=3) for replica in pair))
    assert len({answer.json()["id"] for answer in answers}) == 1
    for other in (["a", "c"], ["a", "b", "c"], "a"):
        refused = (await pair[1].post(headers=key, prompt=other, max_tokens=3)).json()
        assert refused["error"]["code"] == "idempotency_key_reused"
