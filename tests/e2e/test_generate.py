"""The running system returns the tokens of its model, to OpenAI's client and to a generic gRPC client."""

import asyncio
import json
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

import pytest
import torch
from openai import AsyncOpenAI, OpenAI
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests.e2e.clients import client_of
from tests.e2e.system import DEMO, ROOT, System

GREEDY: dict[str, Any] = {"temperature": 0, "max_tokens": 48}


@pytest.fixture
def client(system: System) -> OpenAI:
    return client_of(system)


@pytest.fixture
def model(client: OpenAI) -> str:
    return client.models.list().data[0].id


def held_out_prompts(count: int) -> list[str]:
    """Return the beginnings of functions in standard library files outside the demo models' training data."""
    stdlib = Path(sysconfig.get_paths()["stdlib"])
    names = (DEMO / "held_out.txt").read_text().split()
    texts = [text for name in names if (stdlib / name).exists() and "\ndef " in (text := (stdlib / name).read_text())]
    return [text[: text.index("\ndef ") + 60][-700:] for text in texts][:count]


def reference(prompts: list[list[int]], answers: list[list[int]]) -> list[list[int]]:
    """Return the greedy tokens of `transformers` after each prompt, along the answer and one token beyond.

    One pass over a prompt with its answer gives the greedy token after each prefix of the answer. By induction, an
    answer is the greedy output if it has exactly these tokens up to the end id or the limit.
    """
    target = AutoModelForCausalLM.from_pretrained(DEMO / "target", dtype=torch.float32)
    end, outputs = target.generation_config.eos_token_id, []
    for ids, answer in zip(prompts, answers, strict=True):
        with torch.inference_mode():
            greedy = target(torch.tensor([ids + answer])).logits[0, len(ids) - 1 :].argmax(-1).tolist()
        length = greedy.index(end) + 1 if end in greedy else len(greedy)
        outputs.append(greedy[: min(length, GREEDY["max_tokens"])])
    return outputs


async def test_greedy_tokens_are_those_of_transformers_for_20_prompts_at_once(system: System, model: str) -> None:
    tokenizer = AutoTokenizer.from_pretrained(DEMO / "target")
    prompts = [tokenizer(text)["input_ids"] for text in held_out_prompts(20)]
    assert len(prompts) == 20
    extras = {
        "return_token_ids": True,
        "speculation": {"gamma": 3},
    }  # in auto, a busy machine may not draft
    async with AsyncOpenAI(base_url=f"{system.http}/v1", api_key="none", max_retries=0) as client:
        answers = await asyncio.gather(
            *(client.completions.create(model=model, prompt=ids, extra_body=extras, **GREEDY) for ids in prompts)
        )
    found = [answer.choices[0].token_ids for answer in answers]
    assert found == reference(prompts, found)
    counts = [answer.metrics["speculative_decoding"] for answer in answers if answer.metrics]
    assert sum(each["num_accepted_draft_tokens"] for each in counts) > 0


async def test_32_concurrent_completions_all_finish(system: System, model: str) -> None:
    async with AsyncOpenAI(base_url=f"{system.http}/v1", api_key="none", max_retries=0) as client:
        answers = await asyncio.gather(
            *(
                client.completions.create(
                    model=model, prompt=f"def function_{n}(", max_tokens=24, seed=n, extra_body={"ignore_eos": True}
                )
                for n in range(32)
            )
        )
    assert [answer.usage.completion_tokens for answer in answers if answer.usage] == [24] * 32


def test_a_seed_repeats_itself_and_another_does_not(client: OpenAI, model: str) -> None:
    texts = [
        client.completions.create(model=model, prompt="import os\n\ndef ", max_tokens=40, seed=seed).choices[0].text
        for seed in (7, 7, 8)
    ]
    assert texts[0] == texts[1] != texts[2]


def test_a_streamed_completion_is_the_unstreamed_one(client: OpenAI, model: str) -> None:
    whole = client.completions.create(model=model, prompt="class Queue:\n", seed=3, max_tokens=40)
    stream = client.completions.create(
        model=model,
        prompt="class Queue:\n",
        seed=3,
        max_tokens=40,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = list(stream)
    assert "".join(chunk.choices[0].text for chunk in chunks if chunk.choices) == whole.choices[0].text
    assert chunks[-1].choices == []
    assert chunks[-1].usage == whole.usage


def test_a_chat_streams(client: OpenAI, model: str) -> None:
    stream = client.chat.completions.create(
        model=model, messages=[{"role": "user", "content": "Read a file."}], max_tokens=16, temperature=0, stream=True
    )
    chunks = list(stream)
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-1].choices[0].finish_reason in {"length", "stop"}
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks)


@pytest.mark.parametrize("mode", ["off", "rejection", "block", "coupled"])
def test_every_mode_gives_the_greedy_tokens_and_is_named_in_the_answer(client: OpenAI, model: str, mode: str) -> None:
    plain, speculative = (
        client.completions.create(
            model=model,
            prompt="import sys\n\n\ndef main(",
            extra_body={"speculation": speculation, "return_token_ids": True},
            **GREEDY,
        )
        for speculation in ({"mode": "off"}, {"mode": mode, "gamma": 4})
    )
    assert speculative.choices[0].token_ids == plain.choices[0].token_ids
    assert speculative.speculation["mode"] == mode
    drafted = (speculative.metrics or {}).get("speculative_decoding")
    assert (drafted is None) is (mode == "off")


def test_speculation_statistics_add_up(client: OpenAI, model: str) -> None:
    answer = client.completions.create(
        model=model, prompt="def read(", max_tokens=60, extra_body={"speculation": {"gamma": 3}, "ignore_eos": True}
    )
    counts = answer.metrics["speculative_decoding"]
    histogram = counts["acceptance_histogram"]
    assert len(histogram) == counts["num_spec_tokens"] + 1
    assert sum(histogram) == counts["num_spec_steps"]
    assert sum(j * n for j, n in enumerate(histogram)) == counts["num_accepted_draft_tokens"]
    assert counts["num_draft_tokens"] <= 3 * counts["num_spec_steps"]


def test_a_generic_grpc_client_generates_through_reflection(system: System) -> None:
    buf = Path(sys.executable).with_name("buf")
    request = {"text": "def main(", "sampling": {"temperature": 0}, "stop": {"maxTokens": 12}}
    result = subprocess.run(
        [
            buf,
            "curl",
            "--protocol",
            "grpc",
            "--http2-prior-knowledge",
            "--data",
            json.dumps(request),
            f"http://{system.grpc}/specdec.gateway.v1.GenerationService/Generate",
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert result.returncode == 0, result.stderr
    answer = json.loads(result.stdout)
    assert len(answer["tokens"]) == answer["usage"]["completionTokens"] == 12


def test_masks_hold_and_logprobs_are_those_of_transformers(client: OpenAI, model: str) -> None:
    tokenizer = AutoTokenizer.from_pretrained(DEMO / "target")
    prompt = tokenizer("import sys\n\n\ndef main(")["input_ids"]
    masked = {"allowed_token_ids": list(range(1, 1500)), "banned_token_ids": list(range(1000, 1200))}
    for speculation in ({"mode": "off"}, {"mode": "rejection", "gamma": 4}, {"mode": "block", "gamma": 4}):
        answer = client.completions.create(
            model=model,
            prompt=prompt,
            max_tokens=24,
            logprobs=3,
            seed=3,
            extra_body={"speculation": speculation, "return_token_ids": True} | masked,
        )
        ids = answer.choices[0].token_ids
        assert all(1 <= token < 1000 or 1200 <= token < 1500 for token in ids)
        target = AutoModelForCausalLM.from_pretrained(DEMO / "target", dtype=torch.float32)
        with torch.no_grad():
            logits = target(torch.tensor([prompt + ids])).logits[0, len(prompt) - 1 : -1]
        expected = logits.log_softmax(-1)[torch.arange(len(ids)), ids]
        assert answer.choices[0].logprobs.token_logprobs == pytest.approx(expected.tolist(), abs=1e-3)


def test_lenience_is_served_and_labelled(client: OpenAI, model: str) -> None:
    exact, lenient = (
        client.completions.create(
            model=model,
            prompt="import sys\n\n\ndef main(",
            extra_body={"speculation": {"mode": "rejection", "gamma": 4, "lenience": lenience}, "ignore_eos": True},
            **GREEDY,
        )
        for lenience in (1.0, 0.01)
    )
    assert (exact.speculation["lossy"], lenient.speculation["lossy"]) == (False, True)
    rates = [answer.metrics["speculative_decoding"]["draft_acceptance_rate"] for answer in (exact, lenient)]
    assert rates[0] < rates[1]
