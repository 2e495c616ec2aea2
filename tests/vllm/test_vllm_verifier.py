"""A verifier on vLLM serves the same as the native one: law, tokens, sessions that move, and refusals.

One verifier on vLLM, one native one, one on the reference backend, and one drafter run for the whole file, on tiny
models whose law is computed exactly. KV is scarce on vLLM, so that sequences are preempted and recomputed among the
others.
"""

import asyncio
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import grpc.aio
import httpx2
import numpy as np
import pytest

from specdec.protos.common.v1 import common_pb2 as common
from specdec.protos.verifier.v1 import verifier_pb2 as pb
from specdec.rules.speculation import Mode, TreeOptions
from specdec.sampling.params import SamplingParams
from specdec.wire.tokens import tokens_from_bytes, tokens_to_bytes
from tests.conformance.g_test import p_value
from tests.conformance.model_folders import root
from tests.conformance.plain_model import PlainModel
from tests.conformance.served_pair import Ask, Done, call, generate, running_drafter, running_verifier
from tests.integration.verifier.client import Client
from tests.support.addresses import free_addresses
from tests.support.tiny_models import make_tiny_model
from tests.vllm.server import HAS_VLLM, PYTHON, VllmVerifier, vllm_verifier

pytestmark = [HAS_VLLM, pytest.mark.integration, pytest.mark.timeout(1800)]

VOCABULARY = 8
END = 0
CONTEXT = 256
PROMPT = (3, 5, 1, 6)
SESSIONS = 120
LENGTH = 4
P_VALUE = 1e-6
"""Bound as in tests/conformance: a cell of sound code fails once in a million."""
AT_ONCE = 48
GAMMAS = (3, 1, 2, 0, 3)
LONG = 88
"""Tokens of each sequence that is compared token by token."""
MOVED = 20
"""How many of the LONG tokens the first verifier generates."""
COUNT = 12
"""Number of sequences of each kind."""
KV_BYTES = 18 * 128 * 512
"""Room for 18 blocks of 128 tokens. The compared sequences end with two blocks each."""
PARAMS = {
    "T=1": SamplingParams(),
    "top-p": SamplingParams(temperature=0.8, top_p=0.8),
    "penalties": SamplingParams(
        presence_penalty=1.0, frequency_penalty=0.8, repetition_penalty=1.4, min_tokens=2, end_token_ids=(END,)
    ),
}
CELLS = [(mode, params) for mode in Mode for params in PARAMS]
COMPARED = {
    "greedy": (Mode.REJECTION, SamplingParams(temperature=0.0)),
    "coupled": (Mode.COUPLED, SamplingParams()),
    "coupled, top-p": (Mode.COUPLED, SamplingParams(top_p=0.9)),
}


@dataclass(frozen=True)
class Seen:
    """Results of the verifiers."""

    cells: dict[tuple[Mode, str], list[Done]]
    vllm: dict[str, list[Done]]
    native: dict[str, list[Done]]
    reference: dict[str, list[Done]]
    to_vllm: dict[str, list[Done]]
    """The rest of the answers that the native verifier began."""
    to_native: dict[str, list[Done]]
    edges: tuple[list[Done], list[Done]]
    """Sequences up to the end of the context, in a batch with short ones, on vLLM and native."""
    cached: tuple[int, int]
    """Cached tokens of a second request with the same prompt, and of one with another salt."""
    held: int
    refused: grpc.aio.AioRpcError
    info: tuple[pb.GetVerifierInfoResponse, pb.GetVerifierInfoResponse]
    metrics: str
    after_kill: tuple[list[tuple[int, ...]], list[Done]]
    """Tokens that vLLM's clients had when it was killed, and the rest from the native verifier."""


@cache
def target() -> Path:
    return _model("target", 0.0)


def _model(name: str, noise: float) -> Path:
    shape = {"vocab_size": VOCABULARY, "layers": 1, "context": CONTEXT, "head_dim": 32, "num_key_value_heads": 2}
    return make_tiny_model(root() / "vllm" / name, seed=3, spread=0.2, noise=noise, **shape)  # type: ignore[arg-type]


def prompt(index: int) -> tuple[int, ...]:
    return tuple(1 + (index * 7 + place * place) % 7 for place in range(50 + index % 9))


def compared(name: str, start: Sequence[Done] = ()) -> list[Ask]:
    """Return the compared sequences, or with `start` their continuations from its tokens."""
    mode, params = COMPARED[name]
    begun = [done.tokens[:MOVED] for done in start] or [()] * COUNT
    return [
        Ask(mode, replace(params, seed=100 + at), 4, prompt(at), LONG, committed=tokens, logprobs=2)
        for at, tokens in enumerate(begun)
    ]


def edge() -> list[Ask]:
    greedy = SamplingParams(temperature=0.0)
    ends = [Ask(Mode.REJECTION, greedy, 4, prompt(at) * 4, 200) for at in range(3)]
    return [*ends, *(Ask(Mode.COUPLED, SamplingParams(seed=at), 4, prompt(at), 60) for at in range(3))]


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Seen:
    return asyncio.run(_seen(tmp_path_factory.mktemp("vllm")))


async def _seen(folder: Path) -> Seen:
    (http,) = free_addresses(1)
    async with (
        running_drafter(_model("drafter", 0.1), support=3, ahead=2) as drafts,
        vllm_verifier(target(), folder, drafts.address, kv_bytes=KV_BYTES, http=http) as verifier,
        running_verifier(target(), drafts.address) as native,
        running_verifier(target(), drafts.address, backend="transformers") as reference,
    ):
        cells = {cell: await generate(verifier.client, _cell(at, *cell), AT_ONCE) for at, cell in enumerate(CELLS)}
        on_vllm = {name: await generate(verifier.client, compared(name), COUNT) for name in COMPARED}
        on_native = {name: await generate(native, compared(name), COUNT) for name in COMPARED}
        return Seen(
            cells,
            on_vllm,
            on_native,
            {name: await generate(reference, compared(name), COUNT) for name in COMPARED},
            {name: await generate(verifier.client, compared(name, on_native[name]), COUNT) for name in COMPARED},
            {name: await generate(native, compared(name, on_vllm[name]), COUNT) for name in COMPARED},
            (await generate(verifier.client, edge(), 6), await generate(native, edge(), 6)),
            await _cached(verifier.client),
            (await verifier.client.stub.FindKv(pb.FindKvRequest(tokens=tokens_to_bytes(PROMPT)))).held,
            await _refused(verifier.client),
            (await verifier.client.info(), await native.info()),
            httpx2.get(f"http://{http}/metrics").text,
            await _killed(verifier, native),
        )


def _cell(number: int, mode: Mode, params: str) -> list[Ask]:
    seeds = range(number * SESSIONS, (number + 1) * SESSIONS)
    return [
        Ask(mode, replace(PARAMS[params], seed=seed), GAMMAS[seed % len(GAMMAS)], PROMPT, LENGTH, (END,))
        for seed in seeds
    ]


async def _cached(client: Client) -> tuple[int, int]:
    tokens, found = prompt(8) * 3, []
    for salt in ("", "", "another"):
        rounds = await client.rounds(tokens, session=f"cached{len(found)}", max_tokens=2, salt=salt)
        found.append(rounds[0].cached_tokens)
    return found[1], found[2]


async def _refused(client: Client) -> grpc.aio.AioRpcError:
    try:
        await client.rounds(PROMPT, session="tree", tree=TreeOptions(nodes=4, width=2, depth=2))
    except grpc.aio.AioRpcError as error:
        return error
    raise AssertionError("a tree was not refused")


async def _killed(verifier: VllmVerifier, native: Client) -> tuple[list[tuple[int, ...]], list[Done]]:
    asks = compared("coupled")
    had: list[list[int]] = [[] for _ in asks]

    enough = asyncio.Event()

    async def read(at: int) -> None:
        with suppress(grpc.aio.AioRpcError):
            async for response in verifier.client.call(**call(asks[at]), session=f"k{at}"):
                had[at] += tokens_from_bytes(response.tokens)
                if sum(map(len, had)) >= 10 * len(asks):
                    enough.set()

    readers = [asyncio.create_task(read(at)) for at in range(len(asks))]
    await enough.wait()
    verifier.kill()
    await asyncio.gather(*readers)
    begun = [tuple(tokens) for tokens in had]
    rest = [replace(ask, committed=tokens) for ask, tokens in zip(asks, begun, strict=True)]
    return begun, await generate(native, rest, COUNT)


def _logprobs(done: Sequence[Done]) -> list[float]:
    """Return the log probabilities of all committed tokens."""
    texts = (response.logprobs.tokens for each in done for response in each.rounds)
    return [float(value) for text in texts for value in np.frombuffer(text, "<f4")]


def test_the_environment_has_the_version_that_is_served() -> None:
    assert [path.name for path in PYTHON.parents[1].glob("lib/python3.*/site-packages/vllm-0.32.*.dist-info")]


def test_no_attention_of_this_version_has_the_mask_of_a_tree() -> None:
    (backends,) = PYTHON.parents[1].glob("lib/python3.*/site-packages/vllm/v1/attention/backends")
    assert (backends / "cpu_attn.py").is_file()
    assert [path.name for path in backends.rglob("*.py") if "tree" in path.stem] == []


@pytest.mark.parametrize("cell", CELLS, ids=lambda cell: f"{cell[0]}, {cell[1]}")
def test_the_joint_law_is_the_targets(cell: tuple[Mode, str], seen: Seen) -> None:
    law = PlainModel(target()).law(PARAMS[cell[1]], PROMPT, LENGTH, END)
    assert p_value([done.tokens for done in seen.cells[cell]], law) >= P_VALUE


@pytest.mark.parametrize("mode", [Mode.REJECTION, Mode.BLOCK, Mode.COUPLED])
def test_drafts_are_judged_and_every_kind_of_token_occurs(mode: Mode, seen: Seen) -> None:
    rounds = [response for params in PARAMS for done in seen.cells[mode, params] for response in done.rounds]
    origins = Counter(origin for response in rounds for origin in response.origins)
    kinds = (common.TOKEN_ORIGIN_ACCEPTED, common.TOKEN_ORIGIN_RECOVERED, common.TOKEN_ORIGIN_BONUS)
    assert not {kind: origins[kind] for kind in (*kinds, common.TOKEN_ORIGIN_PLAIN) if origins[kind] <= SESSIONS / 10}


@pytest.mark.parametrize("name", COMPARED)
def test_the_tokens_are_those_of_the_native_engine_and_the_reference(name: str, seen: Seen) -> None:
    vllm, native, reference = (
        [done.tokens for done in each[name]] for each in (seen.vllm, seen.native, seen.reference)
    )
    assert vllm == native == reference


@pytest.mark.parametrize("name", COMPARED)
def test_a_session_moves_between_the_backends_and_keeps_its_tokens(name: str, seen: Seen) -> None:
    rest = [done.tokens[MOVED:] for done in seen.native[name]]
    assert [done.tokens for done in seen.to_vllm[name]] == rest
    assert [done.tokens for done in seen.to_native[name]] == rest


def test_a_killed_verifier_leaves_sessions_that_the_native_one_ends(seen: Seen) -> None:
    begun, rest = seen.after_kill
    whole = [tokens + done.tokens for tokens, done in zip(begun, rest, strict=True)]
    assert whole == [done.tokens for done in seen.native["coupled"]]
    assert any(0 < len(tokens) < LONG for tokens in begun)


def test_sequences_that_gave_up_their_kv_were_among_them(seen: Seen) -> None:
    (line,) = [line for line in seen.metrics.splitlines() if line.startswith("specdec_preemptions_total")]
    assert float(line.split()[-1]) > 0


def test_the_end_of_the_context_is_reached_with_the_same_tokens(seen: Seen) -> None:
    ours, native = seen.edges
    assert [done.tokens for done in ours] == [done.tokens for done in native]
    assert len(ours[0].tokens) == CONTEXT - len(prompt(0)) * 4


def test_logprobs_are_the_models_own(seen: Seen) -> None:
    ours, native = (_logprobs(done) for done in (seen.vllm["greedy"], seen.native["greedy"]))
    assert len(ours) == COUNT * LONG
    assert ours == pytest.approx(native, abs=1e-3)


def test_a_prefix_is_found_again_under_its_own_salt_alone(seen: Seen) -> None:
    assert seen.cached == (128, 0)


def test_trees_are_refused_by_name_and_kv_stays_inside(seen: Seen) -> None:
    assert "judges no trees" in str(seen.refused.details())
    assert seen.held == 0


def test_both_backends_are_one_model_to_a_gateway(seen: Seen) -> None:
    ours, native = seen.info
    assert (ours.trees, native.trees) == (False, True)
    for field in ("tokenizer_hash", "vocab_size", "context_length", "end_token_ids", "system_fingerprint"):
        assert getattr(ours, field) == getattr(native, field)
