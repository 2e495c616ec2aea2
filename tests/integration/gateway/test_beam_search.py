"""Beam search over both APIs: its fields, what excludes it, its answer in one piece, and its queue."""

import asyncio
import threading
from pathlib import Path
from typing import Any

import grpc
import openai
import pytest

from gateway.config import TokenizerSettings
from gateway.text.tokenizer import ModelTokenizer
from specdec.beams.options import BeamOptions, EarlyStopping
from specdec.errors import NoVerifier
from specdec.protos.common.v1 import common_pb2 as common
from specdec.protos.gateway.v1 import gateway_pb2 as pb
from specdec.protos.gateway.v1 import gateway_pb2_grpc as pb_grpc
from specdec.sampling.params import SamplingParams
from tests.integration.gateway.stage import Stage, stage
from tests.support.gateway_fakes import EOS, Script, ScriptedVerifier, facts
from tests.support.tiny_models import make_tiny_model
from verifier_service.app import verifier
from verifier_service.beams.target_beams import TargetBeams
from verifier_service.config import VerifierSettings

TEXT = Script().text
BEAMS: dict[str, Any] = {"use_beam_search": True, "beam_width": 4}
CHAT: Any = [{"role": "user", "content": "Say it"}]
REPORT = {"score": -0.5, "num_steps": 14, "num_accepted_steps": 3}


@pytest.mark.parametrize(
    ("more", "options"),
    [
        ({}, BeamOptions(4)),
        ({"length_penalty": 0.5, "early_stopping": True}, BeamOptions(4, 0.5, EarlyStopping.FULL)),
        ({"early_stopping": "never"}, BeamOptions(4, 1.0, EarlyStopping.NEVER)),
    ],
)
async def test_a_completion_is_the_best_beam(here: Stage, more: dict[str, Any], options: BeamOptions) -> None:
    answer: Any = await here.client.completions.create(
        model="bytes", prompt="Say it", max_tokens=50, seed=3, extra_body=BEAMS | more
    )
    assert (answer.choices[0].text, answer.choices[0].finish_reason) == (TEXT, "stop")
    assert answer.speculation["beam_search"] == REPORT
    (call,) = here.verifier.calls
    assert call.beams == options
    assert call.sampling == SamplingParams(temperature=0.0, seed=3, end_token_ids=(EOS,))


async def test_a_chat_streams_it_when_it_is_there(here: Stage) -> None:
    stream: Any = await here.client.chat.completions.create(
        model="bytes", messages=CHAT, stream=True, temperature=0, extra_body=BEAMS
    )
    texts = [choice.delta.content async for chunk in stream for choice in chunk.choices if choice.delta.content]
    assert texts == [TEXT]


async def test_it_is_there_over_grpc(here: Stage, channel: grpc.aio.Channel) -> None:
    stub: Any = pb_grpc.GenerationServiceStub(channel)
    options = common.BeamOptions(width=2, length_penalty=0.0, early_stopping=common.EARLY_STOPPING_FULL)
    answer = await stub.Generate(pb.GenerateRequest(text="x", beam_search=options))
    assert answer.text == TEXT
    assert answer.speculation.beam_search == common.BeamReport(score=-0.5, steps=14, accepted=3)
    assert here.verifier.calls[-1].beams == BeamOptions(2, 0.0, EarlyStopping.FULL)


async def test_a_search_that_loses_its_verifier_begins_again(here: Stage) -> None:
    here.verifier.failures.append((0, NoVerifier("gone")))
    answer = await here.client.completions.create(model="bytes", prompt="Say it", extra_body=BEAMS | {"max_tokens": 50})
    assert answer.choices[0].text == TEXT
    first, second = here.verifier.calls
    assert first.tokens == second.tokens
    assert second.epoch > first.epoch


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"n": 2}, "n"),
        ({"stop": "x"}, "stop"),
        ({"temperature": 0.7}, "temperature"),
        ({"top_p": 0.9}, "top_p"),
        ({"presence_penalty": 1.0}, "presence_penalty"),
        ({"repetition_penalty": 1.1}, "repetition_penalty"),
        ({"logit_bias": {"5": 1.0}}, "logit_bias"),
        ({"min_tokens": 2}, "min_tokens"),
        ({"bad_words": ["x"]}, "bad_words"),
        ({"logprobs": 1}, "logprobs"),
        ({"prompt_logprobs": 1}, "prompt_logprobs"),
        ({"guided_regex": "a+"}, "guided_regex"),
        ({"speculation": {"tree": {"nodes": 4, "width": 2, "depth": 2}}}, "speculation.tree"),
        ({"speculation": {"mode": "rejection", "lenience": 0.5}}, "speculation.lenience"),
        ({"speculation": {"gamma": "egag"}}, "speculation.gamma"),
        ({"speculation": {"detail": True}}, "speculation.detail"),
        ({"beam_width": 0}, "beam_width"),
        ({"beam_width": 17}, "beam_width"),
        ({"beam_width": None}, "beam_width"),
        ({"length_penalty": 11}, "length_penalty"),
        ({"use_beam_search": False}, "beam_width"),
        ({"early_stopping": "soon"}, "early_stopping"),
    ],
)
async def test_what_excludes_a_search_is_refused_by_name(here: Stage, given: dict[str, Any], field: str) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        await here.client.completions.create(model="bytes", prompt="Say it", extra_body=BEAMS | given)
    assert refused.value.param == field
    assert not here.verifier.calls


async def test_verifiers_that_search_no_beams_are_not_asked() -> None:
    async with stage(ScriptedVerifier(info=facts(beams=False))) as apart:
        with pytest.raises(openai.BadRequestError, match="search no beams") as refused:
            await apart.client.completions.create(model="bytes", prompt="Say it", extra_body=BEAMS)
    assert refused.value.param == "use_beam_search"


async def test_a_search_is_refused_with_429_while_too_many_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first pass of the first search is held, so that the second one waits, and the third is one too many."""
    begun, go = threading.Event(), threading.Event()
    advance = TargetBeams.advance

    def held(*arguments: Any) -> Any:
        begun.set()
        assert go.wait(timeout=60)
        return advance(*arguments)

    monkeypatch.setattr(TargetBeams, "advance", held)
    folder = make_tiny_model(tmp_path / "tiny")
    settings = {"model": {"path": folder, "device": "cpu"}, "max_waiting": 1, "address": "127.0.0.1:0"}
    model = TokenizerSettings(path=folder)
    async with (
        verifier(VerifierSettings.load(None, settings | {"http": "127.0.0.1:0"})) as running,
        stage(tokenizer=ModelTokenizer.load(folder), model=model, verifiers=(running.address,)) as here,
    ):
        asked: dict[str, Any] = {"model": model.served_name, "prompt": "Say it", "max_tokens": 3, "extra_body": BEAMS}
        first = asyncio.create_task(here.client.completions.create(**asked))
        assert await asyncio.to_thread(begun.wait, 60)
        others = [asyncio.create_task(here.client.completions.create(**asked)) for _ in range(2)]
        (refused,), (waiting,) = await asyncio.wait(others, return_when=asyncio.FIRST_COMPLETED)
        go.set()
        error = refused.exception()
        assert isinstance(error, openai.RateLimitError)
        assert (error.status_code, error.code) == (429, "queue_full")
        assert error.response.headers["retry-after"]
        for answer in await asyncio.gather(first, waiting):
            assert answer.speculation["beam_search"]["num_steps"] == 3  # type: ignore[attr-defined]
