"""OpenAI's official client works with a running gateway."""

import asyncio
from typing import Any

import openai
import pytest

from specdec.errors import InternalError, NoVerifier, QueueFull
from tests.integration.gateway.stage import Stage
from tests.support.gateway_fakes import Script, drained, output, until

TEXT = Script().text


async def test_a_completion_has_text_usage_and_what_speculation_did(here: Stage) -> None:
    answer = await here.client.completions.create(
        model="bytes",
        prompt="Say it",
        max_tokens=50,
        seed=3,
        extra_body={"speculation": {"mode": "rejection", "gamma": 3}},
    )
    choice = answer.choices[0]
    assert (choice.text, choice.finish_reason) == (TEXT, "stop")
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens, answer.usage.total_tokens) == (6, 14, 20)
    assert answer.object == "text_completion"
    assert answer.system_fingerprint == "fp_test"
    extra: Any = answer
    assert extra.seed == 3
    exact = {"lenience": 1.0, "lossy": False}
    assert extra.speculation == {"mode": "rejection", "gamma": 3, **exact, "fallbacks": {}}
    assert extra.metrics == {
        "speculative_decoding": {
            "mean_acceptance_length": 1 + 11 / 4,
            "draft_acceptance_rate": 11 / 12,
            "acceptance_histogram": [0, 0, 1, 3],
            "num_spec_steps": 4,
            "num_accepted_draft_tokens": 11,
            "num_draft_tokens": 12,
            "num_spec_tokens": 3,
        }
    }


async def test_completions_default_to_16_tokens(here: Stage) -> None:
    here.verifier.script = Script(text="x" * 40)
    answer = await here.client.completions.create(model="bytes", prompt="Say it")
    assert answer.choices[0].text == "x" * 16
    assert answer.choices[0].finish_reason == "length"


async def test_a_streamed_completion_adds_up_to_the_whole(here: Stage) -> None:
    stream = await here.client.completions.create(
        model="bytes",
        prompt=list(b"Say it"),
        max_tokens=50,
        stream=True,
        stream_options={"include_usage": True},
        extra_body={"return_token_ids": True},
    )
    chunks: list[Any] = [chunk async for chunk in stream]
    *body, last = chunks
    assert "".join(chunk.choices[0].text for chunk in body) == TEXT
    assert [token for chunk in body for token in chunk.choices[0].token_ids] == output(Script())
    assert body[0].choices[0].prompt_token_ids == list(b"Say it")
    assert [chunk.choices[0].finish_reason for chunk in body] == [None] * (len(body) - 1) + ["stop"]
    assert all("usage" in chunk.model_fields_set and chunk.usage is None for chunk in body)
    assert len({(chunk.id, chunk.created, chunk.model) for chunk in chunks}) == 1
    assert last.choices == []
    assert last.usage.completion_tokens == 14
    assert last.metrics["speculative_decoding"]["num_spec_steps"] == 4
    assert last.speculation["mode"] == "rejection"


async def test_without_usage_the_last_chunk_says_what_speculation_did(here: Stage) -> None:
    stream = await here.client.completions.create(model="bytes", prompt="Say it", stream=True)
    chunks: list[Any] = [chunk async for chunk in stream]
    assert chunks[-1].choices[0].finish_reason == "stop"
    assert chunks[-1].metrics["speculative_decoding"]["num_accepted_draft_tokens"] == 11
    assert not any("usage" in chunk.model_fields_set for chunk in chunks)


async def test_a_streamed_chat_begins_with_the_role_and_ends_with_the_reason(here: Stage) -> None:
    stream = await here.client.chat.completions.create(
        model="bytes", messages=[{"role": "user", "content": "hi"}], stream=True, extra_body={"return_token_ids": True}
    )
    chunks: list[Any] = [chunk async for chunk in stream]
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[0].prompt_token_ids == list(b"user: hi\n")
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == TEXT
    assert chunks[-1].choices[0].finish_reason == "stop"
    assert [token for chunk in chunks for token in chunk.choices[0].token_ids] == output(Script())
    assert chunks[-1].metrics is not None


async def test_a_chat_and_its_answer_can_be_continued(here: Stage) -> None:
    history: list[Any] = [{"role": "developer", "content": "Be brief."}, {"role": "user", "content": "hi"}]
    answer = await here.client.chat.completions.create(model="bytes", messages=history, max_completion_tokens=20)
    message = answer.choices[0].message
    assert message.content == TEXT
    again = [*history, message.model_dump(), {"role": "user", "content": [{"type": "text", "text": "again"}]}]
    answer = await here.client.chat.completions.create(model="bytes", messages=again)
    assert answer.choices[0].message.content == TEXT
    assert (
        bytes(here.verifier.calls[-1].tokens)
        == f"system: Be brief.\nuser: hi\nassistant: {TEXT}\nuser: again\n".encode()
    )


async def test_a_stop_string_is_cut_and_named(here: Stage) -> None:
    answer = await here.client.completions.create(model="bytes", prompt="Say it", stop=["lo, w"])
    assert answer.choices[0].text == "Hel"
    assert answer.choices[0].stop_reason == "lo, w"  # type: ignore[attr-defined]


async def test_speculation_that_is_off_leaves_no_metrics(here: Stage) -> None:
    answer: Any = await here.client.completions.create(
        model="bytes", prompt="Say it", extra_body={"speculation": {"mode": "off"}}
    )
    assert answer.metrics is None
    assert answer.speculation == {"mode": "off", "lossy": False, "fallbacks": {}}


async def test_rounds_without_a_drafter_are_reported_and_are_no_error(here: Stage) -> None:
    here.verifier.script = Script(fallback="drafter_unavailable")
    answer: Any = await here.client.completions.create(model="bytes", prompt="Say it")
    assert answer.choices[0].text == TEXT
    assert answer.speculation["gamma"] == "auto"
    assert answer.speculation["fallbacks"] == {"drafter_unavailable": 14}


async def test_models_are_listed(here: Stage) -> None:
    models = await here.client.models.list()
    assert [model.id for model in models.data] == ["bytes"]
    model: Any = await here.client.models.retrieve("bytes")
    assert (model.max_model_len, model.gamma_max) == (256, 8)
    with pytest.raises(openai.NotFoundError):
        await here.client.models.retrieve("other")


@pytest.mark.parametrize(
    ("change", "error", "code"),
    [
        ({"model": "other"}, openai.NotFoundError, "model_not_found"),
        ({"prompt": ""}, openai.BadRequestError, "invalid_value"),
        ({"temperature": 3}, openai.BadRequestError, "invalid_value"),
        ({"suffix": "x"}, openai.BadRequestError, "unsupported_parameter"),
        ({"prompt": "x" * 300}, openai.BadRequestError, "context_length_exceeded"),
    ],
)
async def test_refusals_are_the_clients_own_exceptions(
    here: Stage, change: dict[str, Any], error: type[openai.APIStatusError], code: str
) -> None:
    with pytest.raises(error) as refused:
        await here.client.completions.create(**({"model": "bytes", "prompt": "Say it"} | change))
    assert refused.value.code == code
    assert (await here.client.completions.create(model="bytes", prompt="Say it")).choices[0].text == TEXT


async def test_failures_before_the_first_round_have_a_status_even_in_a_stream(here: Stage) -> None:
    for failure, error in (
        (QueueFull("no room"), openai.RateLimitError),
        (InternalError("oh"), openai.InternalServerError),
    ):
        here.verifier.failures = [(0, failure)]
        with pytest.raises(error):
            await here.client.completions.create(model="bytes", prompt="Say it", stream=True)


async def test_a_failure_after_the_first_round_is_an_error_in_the_stream(here: Stage) -> None:
    here.verifier.failures = [(2, InternalError("oh"))]
    stream = await here.client.completions.create(model="bytes", prompt="Say it", stream=True)
    chunks: list[Any] = []
    with pytest.raises(openai.APIError, match="oh"):
        await drained(stream, chunks.append)
    assert "".join(chunk.choices[0].text for chunk in chunks) == TEXT[:8]


async def test_a_verifier_lost_in_mid_stream_is_not_seen_by_the_client(here: Stage) -> None:
    here.verifier.failures = [(2, NoVerifier("gone"))]
    stream = await here.client.completions.create(model="bytes", prompt="Say it", stream=True)
    assert "".join([chunk.choices[0].text async for chunk in stream]) == TEXT
    assert [call.epoch for call in here.verifier.calls] == [1, 2]


async def test_closing_a_stream_early_cancels_the_verifier(here: Stage) -> None:
    here.verifier.script = Script(text="x" * 200, pause=0.05)
    stream = await here.client.completions.create(model="bytes", prompt="Say it", stream=True, max_tokens=200)
    await anext(aiter(stream))
    await stream.close()
    await until(lambda: here.verifier.cancelled == 1)
    await until(lambda: here.store.only.owner == "")
    assert here.store.only.finish == ""


async def test_leaving_an_unstreamed_request_cancels_the_verifier(here: Stage) -> None:
    here.verifier.script = Script(text="x" * 200, pause=0.05)
    asked = asyncio.create_task(here.client.completions.create(model="bytes", prompt="Say it", max_tokens=200))
    await until(lambda: here.verifier.calls)
    asked.cancel()
    await asyncio.gather(asked, return_exceptions=True)
    await until(lambda: here.verifier.cancelled == 1)
    await until(lambda: here.store.only.owner == "")


async def test_many_at_once(here: Stage) -> None:
    answers = await asyncio.gather(
        *(here.client.completions.create(model="bytes", prompt=f"Say it {n}") for n in range(20))
    )
    assert {answer.choices[0].text for answer in answers} == {TEXT}
    assert len({answer.id for answer in answers}) == 20


@pytest.mark.parametrize(("tier", "used", "level"), [(None, "default", 0), ("auto", "default", 0), ("flex", "flex", 1)])
async def test_the_service_tier_used_is_reported(here: Stage, tier: Any, used: str, level: int) -> None:
    answer = await here.client.completions.create(model="bytes", prompt="Say it", extra_body={"service_tier": tier})
    chunks = [
        chunk
        async for chunk in await here.client.chat.completions.create(
            model="bytes", messages=[{"role": "user", "content": "Say it"}], service_tier=tier, stream=True
        )
    ]
    assert {chunk.service_tier for chunk in chunks} == {used}
    assert answer.model_extra
    assert answer.model_extra["service_tier"] == used
    assert [call.priority for call in here.verifier.calls] == [level, level]
