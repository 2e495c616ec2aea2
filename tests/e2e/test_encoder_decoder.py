"""`specdec up` serves tiny encoder-decoders by both APIs in every mode, and after their verifier is killed."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from openai import BadRequestError
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

from specdec.client import Client, PromptRequest, RoundEvent
from specdec.rules.speculation import Mode
from tests.e2e.clients import client_of
from tests.e2e.system import NO_DRAFT_IS_LATE, System, killed_verifier, running_system, wait_until
from tests.support.seq2seq_models import SHAPES, make_seq2seq_model
from tests.support.tiny_models import END_TOKEN_ID

PROMPT = "The house is wonderful."
TOKENS, LONG = 40, 400
EXTRA = {"ignore_eos": True, "return_token_ids": True}


@pytest.fixture(scope="module", params=SHAPES)
def folder(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    """Return a folder with a pair of models of one architecture."""
    folder: Path = tmp_path_factory.mktemp(request.param)
    room = {"max_position_embeddings": 512} if request.param == "bart" else {}
    make_seq2seq_model(folder / "target", request.param, seed=3, **room)
    make_seq2seq_model(folder / "draft", request.param, seed=3, noise=0.02, **room)
    return folder


@pytest.fixture(scope="module")
def system(folder: Path) -> Iterator[System]:
    """Run two verifiers and a drafter. The backend is that of the target's kind."""
    models = ("--target", str(folder / "target"), "--drafter", str(folder / "draft"), "--served-model-name", "demo")
    with running_system(folder, *models, "--verifiers", "2", **NO_DRAFT_IS_LATE) as running:
        wait_until(running.has_ready_drafters)
        yield running


def generated(folder: Path, count: int) -> list[int]:
    """Return the greedy tokens of transformers for PROMPT."""
    target = folder / "target"
    model = AutoModelForSeq2SeqLM.from_pretrained(target, dtype=torch.float32).eval()
    model.generation_config.eos_token_id = None
    ids = torch.tensor([AutoTokenizer.from_pretrained(target)(PROMPT).input_ids])
    out = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=count, do_sample=False)
    return [int(each) for each in out[0, 1:]]


def request(count: int, **speculation: Any) -> dict[str, Any]:
    extra = EXTRA | {"speculation": speculation}
    return {"model": "demo", "prompt": PROMPT, "max_tokens": count, "temperature": 0, "extra_body": extra}


@pytest.mark.parametrize("mode", Mode)
def test_both_apis_stream_the_tokens_of_generate(system: System, folder: Path, mode: Mode) -> None:
    expected = generated(folder, TOKENS)
    asked = request(TOKENS, mode=mode.value, **({} if mode is Mode.OFF else {"gamma": 3}))
    whole: Any = client_of(system).completions.create(**asked)
    assert whole.choices[0].token_ids == expected
    if mode is not Mode.OFF:
        assert whole.metrics["speculative_decoding"]["num_accepted_draft_tokens"] > 0
    chunks: Any = client_of(system).completions.create(**asked, stream=True)
    assert [token for chunk in chunks for token in chunk.choices[0].token_ids or []] == expected
    with Client(system.grpc) as client:
        events = list(client.stream(PromptRequest(PROMPT, TOKENS, temperature=0.0, mode=mode)))
    ids = [token.id for event in events if isinstance(event, RoundEvent) for token in event.tokens]
    assert ids == expected[: len(ids)]
    assert len(ids) == TOKENS or expected[len(ids)] == END_TOKEN_ID


def test_sampled_tokens_of_a_seed_are_those_of_plain_decoding(system: System) -> None:
    asked = [request(TOKENS, mode=mode) | {"temperature": 1, "seed": 11} for mode in ("off", "coupled")]
    plain, drafted = (client_of(system).completions.create(**each).choices[0] for each in asked)
    assert plain.token_ids == drafted.token_ids  # type: ignore[attr-defined]


def test_a_killed_verifier_costs_no_token_and_repeats_none(system: System, folder: Path) -> None:
    ids, killed = list[int](), 0
    for chunk in client_of(system).completions.create(**request(LONG), stream=True):
        killed = killed or killed_verifier(system)
        ids += chunk.choices[0].token_ids or []  # type: ignore[attr-defined]
    assert killed
    assert ids == generated(folder, LONG)
    wait_until(system.has_ready_verifiers)


def test_a_chat_is_refused_by_name(system: System) -> None:
    with pytest.raises(BadRequestError, match="no chat template: use /v1/completions"):
        client_of(system).chat.completions.create(model="demo", messages=[{"role": "user", "content": PROMPT}])
