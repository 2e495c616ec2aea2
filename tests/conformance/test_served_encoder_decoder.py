"""A verifier on the reference backend serves encoder-decoders through both real services, and decoders.

Greedy tokens equal those of transformers' `generate` in every mode, including a generation that continues from
committed tokens and a drafter of another kind, which is refused. Sampled outputs have the target's law, shown by a
G-test of joint outputs in each mode.
"""

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForSeq2SeqLM

from specdec.protos.common.v1 import common_pb2 as common
from specdec.rules.speculation import Mode
from specdec.sampling.params import SamplingParams
from tests.conformance.g_test import p_value
from tests.conformance.plain_model import PlainModel
from tests.conformance.served_pair import ANY_PORT, PATIENCE, Ask, Done, generate, running_drafter, running_verifier
from tests.conformance.small_pair import END, PROMPT, small
from tests.conformance.table_models import Context
from tests.integration.verifier.client import connected
from tests.support.seq2seq_models import SHAPES, make_seq2seq_model
from verifier_service.app import verifier
from verifier_service.config import VerifierSettings

pytestmark = pytest.mark.integration

TOKENS = 24
GREEDY = SamplingParams(temperature=0.0)
PROMPTS = (tuple((7 + 31 * place * place) % 300 + 3 for place in range(13)), (5, 290))
SESSIONS, LENGTH, P_VALUE = 250, 3, 1e-6
SHARP = SamplingParams(temperature=0.4)
"""Parameters under which the likeliest outputs are frequent enough to be cells of their own in the G-test."""
BACKEND = {"backend": "transformers"}
Triple = tuple[Path, Path, PlainModel]


def answers(folder: Path) -> dict[Context, Context]:
    """Return the tokens that transformers generates for each prompt."""
    model = AutoModelForSeq2SeqLM.from_pretrained(folder, dtype=torch.float32).eval()
    model.generation_config.eos_token_id = None
    found = {}
    for prompt in PROMPTS:
        ids = torch.tensor([prompt])
        out = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=TOKENS, do_sample=False)
        found[prompt] = tuple(out[0, 1:].tolist())
    return found


async def served(target: Path, draft: Path, asks: Sequence[Ask]) -> list[Done]:
    async with (
        running_drafter(draft, **BACKEND) as drafter,
        running_verifier(target, drafter.address, **BACKEND) as client,
    ):
        return await generate(client, asks, at_once=4)


@pytest.mark.parametrize("architecture", SHAPES)
def test_greedy_tokens_are_those_of_generate_in_every_mode(architecture: str, tmp_path: Path) -> None:
    target = make_seq2seq_model(tmp_path / "target", architecture, seed=3)
    draft = make_seq2seq_model(tmp_path / "draft", architecture, seed=3, noise=0.02)
    expected = answers(target)
    asks = [
        Ask(mode, GREEDY, gamma, prompt, TOKENS, committed=expected[prompt][:committed])
        for mode in Mode
        for gamma in (3, None)
        for prompt in PROMPTS
        for committed in (0, 7)
    ]
    done = asyncio.run(served(target, draft, asks))
    for ask, each in zip(asks, done, strict=True):
        assert ask.committed + each.tokens == expected[ask.prompt]
    accepted = [sum(each.accepted for each in one.rounds) for one in done]
    rejected = [sum(len(each.draft_tokens) // 4 - each.accepted for each in one.rounds) for one in done]
    assert sum(accepted) > 0
    assert sum(rejected) > 0


class PlainEncoderDecoder(PlainModel):
    """An encoder-decoder run by transformers: one forward pass over whole sequences, without cache, in float64."""

    def __init__(self, folder: Path) -> None:
        self._model = AutoModelForSeq2SeqLM.from_pretrained(folder, dtype=torch.float64).eval()

    def logits(self, sequences: Sequence[Context]) -> Tensor:
        """Return the logits after the last token of each sequence. The first tokens of a sequence are PROMPT."""
        outputs = [(END, *sequence[len(PROMPT) :]) for sequence in sequences]
        prompts = torch.tensor([PROMPT] * len(sequences))
        mask = torch.ones_like(prompts)
        with torch.no_grad():
            made = self._model(input_ids=prompts, attention_mask=mask, decoder_input_ids=torch.tensor(outputs))
        logits: Tensor = made.logits[:, -1]
        return logits


def encoder_decoders(folder: Path) -> Triple:
    """Return a target, a drafter, and the target run by transformers."""
    shape = {"vocab_size": 8, "spread": 1.0}
    target = make_seq2seq_model(folder / "target", "t5", seed=3, **shape)  # type: ignore[arg-type]
    draft = make_seq2seq_model(folder / "draft", "t5", seed=3, noise=0.3, **shape)  # type: ignore[arg-type]
    return target, draft, PlainEncoderDecoder(target)


def decoders(folder: Path) -> Triple:
    """Return the pair of the conformance suite."""
    return small().target, small().drafter, small().plain


@pytest.mark.parametrize("models", [encoder_decoders, decoders])
def test_sampled_outputs_have_the_targets_law_in_every_mode(models: Callable[[Path], Triple], tmp_path: Path) -> None:
    target, draft, plain = models(tmp_path)
    law = plain.law(SHARP, PROMPT, LENGTH, END)
    asks = [
        Ask(mode, replace(SHARP, seed=1000 * place + number), 2, PROMPT, LENGTH, stop=(END,))
        for place, mode in enumerate(Mode)
        for number in range(SESSIONS)
    ]
    order = list(range(len(asks)))
    random.Random(0).shuffle(order)
    done = dict(zip(order, asyncio.run(served(target, draft, [asks[place] for place in order])), strict=True))
    for place, mode in enumerate(Mode):
        outputs = [done[place * SESSIONS + number].tokens for number in range(SESSIONS)]
        assert p_value(outputs, law) > P_VALUE, mode
        biased = [(output[0], 1, *output[2:]) if len(output) > 1 else output for output in outputs]
        assert p_value(biased, law) < P_VALUE
    rounds = [response for each in done.values() for response in each.rounds]
    kinds = Counter(origin for response in rounds for origin in response.origins)
    assert min(kinds[each] for each in (common.TOKEN_ORIGIN_ACCEPTED, common.TOKEN_ORIGIN_RECOVERED)) > SESSIONS / 10


async def test_a_drafter_of_the_other_kind_is_refused_by_name(tmp_path: Path) -> None:
    target = make_seq2seq_model(tmp_path / "target", "t5", seed=3, vocab_size=8)
    given = {"model": {"path": target, "device": "cpu"}, "kv_bytes": 2**22, **ANY_PORT, **BACKEND}
    async with running_drafter(small().drafter) as drafter, asyncio.timeout(PATIENCE):
        settings = VerifierSettings.load(None, {**given, "drafters": [drafter.address]})
        async with verifier(settings) as server, connected(server.address) as client:
            state = "connecting"
            while state == "connecting":
                await asyncio.sleep(0.01)
                state = (await client.info()).drafters[0].state
    assert "is decoder-only, and the target an encoder-decoder" in state
