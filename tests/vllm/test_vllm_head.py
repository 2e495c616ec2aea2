"""A draft head beside a target on vLLM: the law and the tokens stay, and the drafts are those of the native engine.

One verifier on vLLM and one native one serve the same target and head, on tiny models whose law is computed exactly.
The native one also runs without the head. KV is scarce on vLLM, so that sequences are preempted among the others.
"""

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx2
import pytest
import torch
from transformers import AutoModelForCausalLM

from specdec.protos.common.v1 import common_pb2 as common
from specdec.rules.speculation import Mode
from specdec.sampling.grammar import Grammar, GrammarKind
from specdec.sampling.params import SamplingParams
from specdec.wire.tokens import tokens_from_bytes
from tests.conformance.g_test import p_value
from tests.conformance.plain_model import PlainModel
from tests.conformance.served_pair import Ask, Done, generate, running_verifier
from tests.support.addresses import free_addresses
from tests.support.tiny_heads import make_tiny_head
from tests.support.tiny_models import make_tiny_model
from tests.vllm.programs import run
from tests.vllm.server import HAS_VLLM, vllm_verifier

pytestmark = [HAS_VLLM, pytest.mark.integration, pytest.mark.timeout(1800)]

VOCABULARY, LAYERS, CONTEXT = 8, 3, 256
TAPS = (2, 1, 1)
"""Tapped layers; vLLM gives the states of each once, in ascending order."""
DRAFT_IDS = torch.tensor([0, 1, 3, 5, 6])
END = 0
PROMPT = (3, 5, 1, 6)
SESSIONS, LENGTH, AT_ONCE = 120, 4, 48
P_VALUE = 1e-6
"""Bound as in tests/conformance: a cell of sound code fails once in a million."""
GAMMAS = (3, 1, 2, 3)
LONG, COUNT = 88, 12
KV_BYTES = 18 * (LAYERS + 1) * 128 * 512
"""Room for 18 blocks of 128 tokens beside the head's share. The compared sequences end with two blocks each."""
PARAMS = {
    "T=1": SamplingParams(),
    "top-p": SamplingParams(temperature=0.8, top_p=0.8),
}
CELLS = [(mode, params) for mode in Mode if mode is not Mode.OFF for params in PARAMS]
GREEDY = SamplingParams(temperature=0.0)
COMPARED = {"greedy": (Mode.REJECTION, GREEDY), "coupled": (Mode.COUPLED, SamplingParams())}
SHAPE: dict[str, Any] = {"vocab_size": VOCABULARY, "context": CONTEXT, "head_dim": 32, "num_key_value_heads": 2}


def make_target(folder: Path) -> Path:
    return make_tiny_model(folder, seed=3, spread=0.25, layers=LAYERS, **SHAPE)


def make_head(folder: Path, taps: tuple[int, ...] = TAPS) -> Path:
    ids: dict[str, Any] = {"vocab": VOCABULARY, "draft_vocab": len(DRAFT_IDS), "ids": DRAFT_IDS}
    return make_tiny_head(folder, taps=taps, spread=0.7, seed=2, **ids)


@dataclass(frozen=True)
class Seen:
    """Results of the verifiers."""

    target: Path
    cells: dict[tuple[Mode, str], list[Done]]
    vllm: dict[str, list[Done]]
    plain: dict[str, list[Done]]
    """Answers of the native verifier without a head."""
    alone: tuple[list[Done], list[Done]]
    """Greedy answers to one prompt after another, on vLLM and native, both with the head."""
    grammar: list[Done]
    metrics: str


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Seen:
    return asyncio.run(_seen(tmp_path_factory.mktemp("headed")))


async def _seen(folder: Path) -> Seen:
    (http,) = free_addresses(1)
    target, head = make_target(folder / "target"), make_head(folder / "head")
    async with running_verifier(target) as native:
        plain = {name: await generate(native, compared(name), COUNT) for name in COMPARED}
    async with running_verifier(target, head=head) as native:
        native_alone = await generate(native, alone(), 1)
    served = {"kv_bytes": KV_BYTES, "http": http, "head": str(head), "local": ["head"]}
    async with vllm_verifier(target, folder, **served) as verifier:
        client = verifier.client
        return Seen(
            target,
            {cell: await generate(client, cell_asks(at, *cell), AT_ONCE) for at, cell in enumerate(CELLS)},
            {name: await generate(client, compared(name), COUNT) for name in COMPARED},
            plain,
            (await generate(client, alone(), 1), native_alone),
            await generate(
                client, [replace(each, params=replace(each.params, grammar=PRINTABLE)) for each in alone()], 1
            ),
            httpx2.get(f"http://{http}/metrics").text,
        )


PRINTABLE = Grammar(GrammarKind.REGEX, "[!-~]{40}")
"""A grammar that forces nothing."""


def cell_asks(number: int, mode: Mode, params: str) -> list[Ask]:
    return [
        Ask(mode, replace(PARAMS[params], seed=seed), GAMMAS[seed % len(GAMMAS)], PROMPT, LENGTH, (END,))
        for seed in range(number * SESSIONS, (number + 1) * SESSIONS)
    ]


def prompt(index: int) -> tuple[int, ...]:
    return tuple(1 + (index + place * place + index * place) % 7 for place in range(50 + index % 9))


def compared(name: str) -> list[Ask]:
    mode, params = COMPARED[name]
    return [Ask(mode, replace(params, seed=100 + at), 4, prompt(at), LONG) for at in range(COUNT)]


def alone() -> list[Ask]:
    return [Ask(Mode.REJECTION, GREEDY, 3, prompt(at), 40, drafter="head") for at in range(4)]


def rounds_of(done: Sequence[Done]) -> list[list[tuple[int, tuple[int, ...]]]]:
    """Return the draft of each round of each answer, with the number of tokens before it."""
    return [[(each.base_len, tuple(tokens_from_bytes(each.draft_tokens))) for each in one.rounds] for one in done]


@pytest.mark.parametrize("cell", CELLS, ids=lambda cell: f"{cell[0]}, {cell[1]}")
def test_the_joint_law_is_the_targets(cell: tuple[Mode, str], seen: Seen) -> None:
    law = PlainModel(seen.target).law(PARAMS[cell[1]], PROMPT, LENGTH, END)
    assert p_value([done.tokens for done in seen.cells[cell]], law) >= P_VALUE


@pytest.mark.parametrize("cell", CELLS, ids=lambda cell: f"{cell[0]}, {cell[1]}")
def test_drafts_of_the_head_are_kept_or_not(cell: tuple[Mode, str], seen: Seen) -> None:
    rounds = [response for done in seen.cells[cell] for response in done.rounds]
    origins = Counter(origin for response in rounds for origin in response.origins)
    assert origins[common.TOKEN_ORIGIN_ACCEPTED] > SESSIONS / 20
    assert origins[common.TOKEN_ORIGIN_RECOVERED] > SESSIONS / 20
    assert {response.drafter for response in rounds} == {"", "head"}
    drafts = [token for response in rounds for token in tokens_from_bytes(response.draft_tokens)]
    assert set(drafts) <= set(DRAFT_IDS.tolist())


@pytest.mark.parametrize("name", COMPARED)
def test_the_tokens_are_those_without_a_head(name: str, seen: Seen) -> None:
    assert [done.tokens for done in seen.vllm[name]] == [done.tokens for done in seen.plain[name]]
    assert sum(response.accepted for done in seen.vllm[name] for response in done.rounds) > COUNT


def test_sequences_that_gave_up_their_kv_were_among_them(seen: Seen) -> None:
    (line,) = [line for line in seen.metrics.splitlines() if line.startswith("specdec_preemptions_total")]
    assert float(line.split()[-1]) > 0


def test_the_drafts_are_those_of_the_native_engine(seen: Seen) -> None:
    ours, native = map(rounds_of, seen.alone)
    assert ours == native
    assert sum(len(draft) for rounds in ours for _, draft in rounds) > 100


def test_under_a_grammar_the_head_does_not_draft(seen: Seen) -> None:
    rounds = [response for done in seen.grammar for response in done.rounds]
    assert rounds
    assert {response.drafter for response in rounds} <= {"", "grammar"}


STATES = """
import sys
from dataclasses import replace
import torch
from specdec.rules.draft import Draft, certain
from specdec.rules.speculation import Mode, Speculation
from specdec.sampling.params import SamplingParams
from specdec.wire.generation import GenerationCall
from verifier_service.backends.batch_plan import Row
from verifier_service.config import VerifierSettings
from verifier_service.vllm.target import load_target

def row_of(name, tokens, draft=()):
    call = GenerationCall(
        session_id=name, epoch=1, tokens=tokens, prompt_len=len(tokens), sampling=SamplingParams(temperature=0.0),
        max_tokens=50, stop_token_ids=(), speculation=Speculation(Mode.REJECTION, 3),
    )
    return Row(call, name, 0.0, 200, tokens, len(tokens), certain(draft, Mode.REJECTION))

if __name__ == "__main__":
    model, tokens = {"path": sys.argv[1]}, list(map(int, sys.argv[4].split()))
    given = {"model": model, "backend": "vllm", "kv_bytes": 2**24, "head": sys.argv[2]}
    _, target, *_ = load_target(VerifierSettings.load(overrides=given))
    taken = []
    target._head.take = lambda rows, pieces, judged, states: taken.append(
        {rows[name].kv_name: states.of(name, piece.count + piece.drafts) for name, piece in pieces.items()}
    )
    first, second = row_of("a", tokens[:30]), row_of("b", tokens[5:50])
    target.step([], [replace(row, goal=0) for row in (first, second)])
    results = target.step([], [first, second]).results
    whole = [*tokens[:30], *results[first].verdict.tokens]
    target.step([], [row_of("a", whole, (1, 2, 3))])
    torch.save((taken, [*whole, 1, 2, 3]), sys.argv[3])
"""


def test_the_states_are_those_of_the_native_engine_tap_by_tap(tmp_path: Path) -> None:
    target, head = make_target(tmp_path / "target"), make_head(tmp_path / "head")
    tokens = [1 + (at * at + at) % 7 for at in range(60)]
    run(STATES, tmp_path, str(target), str(head), str(tmp_path / "states"), " ".join(map(str, tokens)))
    (first, second), whole = torch.load(tmp_path / "states")
    model = AutoModelForCausalLM.from_pretrained(target)
    for found, own in ((first["a"], tokens[:30]), (first["b"], tokens[5:50]), (second["a"], whole)):
        with torch.inference_mode():
            states = model(torch.tensor([own]), output_hidden_states=True).hidden_states
        for tap, part in zip(TAPS, found.chunk(len(TAPS), -1), strict=True):
            torch.testing.assert_close(part, states[tap][0, -len(part) :], rtol=1e-4, atol=1e-4)
            others = [layer for layer in range(LAYERS) if layer != tap]
            assert not any(torch.allclose(part, states[layer][0, -len(part) :], atol=1e-2) for layer in others)


REFUSALS = """
import sys
from pathlib import Path
from specdec.errors import ConfigError
from verifier_service.config import VerifierSettings
from verifier_service.vllm.target import load_target

if __name__ == "__main__":
    given = {"model": {"path": sys.argv[1]}, "backend": "vllm", "kv_bytes": 2**24, "head": sys.argv[2]}
    try:
        load_target(VerifierSettings.load(overrides=given))
    except ConfigError as error:
        print(error)
"""


def test_a_target_without_hidden_states_is_refused_by_name(tmp_path: Path) -> None:
    target = make_tiny_model(tmp_path / "target", "gemma2", layers=LAYERS, vocab_size=VOCABULARY, head_dim=32)
    refused = run(REFUSALS, tmp_path, str(target), str(make_head(tmp_path / "head")))
    assert "head: vllm hands out no hidden states or no embedding of Gemma2ForCausalLM" in refused
