"""Adapters that requests choose, on one verifier on vLLM: each has the law and the tokens of its merged weights.

The model and two adapters generate in the same passes, with drafts of the model's own drafter. The expected tokens are
those of native verifiers of the merged weights; prompts fill a block of vLLM, and every adapter is asked for the same
ones, so that blocks of another adapter would change tokens.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import TypeVar

import grpc.aio
import pytest

from specdec.protos.verifier.v1 import verifier_pb2 as pb
from specdec.rules.blocks import adapter_end
from specdec.rules.speculation import Mode
from specdec.sampling.params import SamplingParams
from specdec.wire.tokens import tokens_to_bytes
from tests.conformance.g_test import p_value
from tests.conformance.plain_model import PlainModel
from tests.conformance.served_pair import Ask, Done, generate, running_drafter, running_verifier
from tests.integration.verifier.client import Client
from tests.support.tiny_models import make_tiny_model
from tests.vllm.adapters import write_adapter
from tests.vllm.server import HAS_VLLM, vllm_verifier

pytestmark = [HAS_VLLM, pytest.mark.integration, pytest.mark.timeout(1800)]

VOCABULARY = 8
END = 0
PROMPT = (3, 5, 1, 6)
SESSIONS = 120
LENGTH = 3
P_VALUE = 1e-6
"""Bound as in tests/conformance: a cell of sound code fails once in a million."""
AT_ONCE = 48
NAMES = ("", "red", "blue")
"""The model as it is, and its adapters."""
MODES = (Mode.REJECTION, Mode.BLOCK, Mode.COUPLED, Mode.OFF)
BLOCK = 128
"""Tokens of a block of vLLM on a CPU."""
LONG = 48
MOVED = 20
"""How many of the LONG tokens the first attempt of a resumed session generates."""
COUNT = 4
KINDS = {
    "greedy": (Mode.REJECTION, SamplingParams(temperature=0.0)),
    "coupled": (Mode.COUPLED, SamplingParams()),
    "coupled, top-p": (Mode.COUPLED, SamplingParams(top_p=0.9)),
}
Key = TypeVar("Key")
CELLS = [(mode, name) for mode in MODES for name in NAMES]


@dataclass(frozen=True)
class Seen:
    """Results of the verifiers."""

    merged: Mapping[str, Path]
    """Folder of the model with each adapter merged in, by name."""
    cells: Mapping[tuple[Mode, str], Sequence[Done]]
    vllm: Mapping[tuple[str, str], Sequence[Done]]
    """Compared sequences by kind and adapter."""
    native: Mapping[tuple[str, str], Sequence[Done]]
    resumed: Mapping[tuple[str, str], Sequence[Done]]
    """The rest of the sequences from their first MOVED tokens."""
    cached: Sequence[int]
    """Cached tokens of one prompt asked for with each of NAMES in turn, twice."""
    held: Mapping[str, int]
    """Tokens that FindKv finds of a prompt that only the adapter `red` has computed, by the end of the salt."""
    refused: Mapping[str, grpc.aio.AioRpcError]
    """Refusals of an unknown adapter, by backend."""
    info: tuple[pb.GetVerifierInfoResponse, pb.GetVerifierInfoResponse]


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Seen:
    return asyncio.run(_seen(tmp_path_factory.mktemp("adapters")))


def _model(folder: Path, noise: float) -> Path:
    shape = {"vocab_size": VOCABULARY, "layers": 1, "context": 256, "head_dim": 32, "num_key_value_heads": 2}
    return make_tiny_model(folder, seed=3, spread=0.2, noise=noise, **shape)  # type: ignore[arg-type]


async def _seen(folder: Path) -> Seen:
    merged = {"": _model(folder / "model", 0.0)}
    for seed, name in enumerate(NAMES[1:]):
        merged[name] = folder / f"{name} merged"
        write_adapter(merged[""], folder / name, merged[name], seed, size=2.0)
    modules = {"lora_modules": {name: str(folder / name) for name in NAMES[1:]}}
    native: dict[tuple[str, str], Sequence[Done]] = {}
    async with running_drafter(_model(folder / "drafter", 0.1), support=3, ahead=2) as drafts:
        for name, model in merged.items():
            async with running_verifier(model, drafts.address) as client:
                for kind in KINDS:
                    native[kind, name] = await generate(client, _compared(kind, ""), COUNT)
                other = await client.info(), await _refused(client)
        async with vllm_verifier(merged[""], folder, drafts.address, vllm=modules) as verifier:
            client = verifier.client
            cells = await _mixed(client, {cell: _cell(at, *cell) for at, cell in enumerate(CELLS)})
            compared = [(kind, name) for kind in KINDS for name in NAMES]
            on_vllm = await _mixed(client, {each: _compared(*each) for each in compared})
            begun = {each: _compared(*each, [done.tokens for done in native[each]]) for each in compared}
            return Seen(
                merged,
                cells,
                on_vllm,
                native,
                await _mixed(client, begun),
                await _cached(client),
                await _held(client),
                {"native": other[1], "vllm": await _refused(client)},
                (await client.info(), other[0]),
            )


def _cell(number: int, mode: Mode, name: str) -> list[Ask]:
    seeds = range(number * SESSIONS, (number + 1) * SESSIONS)
    return [Ask(mode, SamplingParams(seed=seed), 1 + seed % 3, PROMPT, LENGTH, (END,), adapter=name) for seed in seeds]


def _compared(kind: str, name: str, whole: Sequence[tuple[int, ...]] = ()) -> list[Ask]:
    """Return the compared sequences, or with `whole` their continuations from the first MOVED of these tokens."""
    mode, params = KINDS[kind]
    begun = [tokens[:MOVED] for tokens in whole] or [()] * COUNT
    prompts = [tuple(1 + (at * 7 + place * place) % 7 for place in range(BLOCK + 10 + at)) for at in range(COUNT)]
    return [
        Ask(mode, replace(params, seed=at), 4, prompt, LONG, committed=tokens, adapter=name)
        for at, (prompt, tokens) in enumerate(zip(prompts, begun, strict=True))
    ]


async def _mixed(client: Client, asks: Mapping[Key, Sequence[Ask]]) -> dict[Key, list[Done]]:
    """Run the generations of all keys in the same passes, and return those of each."""
    turns = list(chain.from_iterable(zip(*asks.values(), strict=True)))
    done = await generate(client, turns, AT_ONCE)
    return {key: done[at :: len(asks)] for at, key in enumerate(asks)}


async def _cached(client: Client) -> list[int]:
    tokens, found = (2,) * (BLOCK + 4), list[int]()
    for name in (*NAMES, *NAMES):
        rounds = await client.rounds(tokens, session=f"cached{len(found)}", max_tokens=2, adapter=name)
        found.append(rounds[0].cached_tokens)
    return found


async def _held(client: Client) -> dict[str, int]:
    """Ask for KV under the salts of the model, of both adapters, and of none, as no gateway would."""
    tokens, ends = (
        (4,) * (BLOCK + 4),
        {each.name: adapter_end(each.system_fingerprint) for each in (await client.info()).adapters},
    )
    await client.rounds(tokens, session="held", max_tokens=2, adapter="red", salt="s")
    found = {}
    for name, end in {"": "", **ends}.items():
        request = pb.FindKvRequest(tokens=tokens_to_bytes(tokens), cache_salt=f"s{end}")
        found[name] = (await client.stub.FindKv(request)).held
    return found


async def _refused(client: Client) -> grpc.aio.AioRpcError:
    try:
        await client.rounds(PROMPT, session="green", adapter="green")
    except grpc.aio.AioRpcError as error:
        return error
    raise AssertionError("an unknown adapter was not refused")


@pytest.mark.parametrize("cell", CELLS, ids=lambda cell: f"{cell[0]}, {cell[1] or 'model'}")
def test_the_joint_law_is_that_of_the_merged_weights(cell: tuple[Mode, str], seen: Seen) -> None:
    outputs = [done.tokens for done in seen.cells[cell]]
    for name in NAMES:
        law = PlainModel(seen.merged[name]).law(SamplingParams(), PROMPT, LENGTH, END)
        # Under the law of another one the same answers fail, so that an adapter that is ignored would be seen.
        assert (p_value(outputs, law) >= P_VALUE) is (name == cell[1])


@pytest.mark.parametrize("mode", [Mode.REJECTION, Mode.BLOCK, Mode.COUPLED])
@pytest.mark.parametrize("name", NAMES)
def test_drafts_of_the_models_drafter_are_accepted(mode: Mode, name: str, seen: Seen) -> None:
    assert sum(response.accepted for done in seen.cells[mode, name] for response in done.rounds) > 0


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", NAMES)
def test_the_tokens_are_those_of_the_merged_weights(kind: str, name: str, seen: Seen) -> None:
    assert [done.tokens for done in seen.vllm[kind, name]] == [done.tokens for done in seen.native[kind, name]]
    others = [seen.native[kind, other] for other in NAMES if other != name]
    assert all([done.tokens for done in seen.vllm[kind, name]] != [done.tokens for done in other] for other in others)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", NAMES)
def test_a_resumed_session_goes_on_with_its_adapter(kind: str, name: str, seen: Seen) -> None:
    rest = [done.tokens[MOVED:] for done in seen.native[kind, name]]
    assert [done.tokens for done in seen.resumed[kind, name]] == rest


def test_an_adapter_finds_its_own_blocks_alone(seen: Seen) -> None:
    assert seen.cached == [0, 0, 0, BLOCK, BLOCK, BLOCK]


def test_kv_of_an_adapter_is_found_under_its_own_salt_alone(seen: Seen) -> None:
    assert seen.held == {"": 0, "red": BLOCK, "blue": 0}


def test_an_unknown_adapter_is_refused_by_name(seen: Seen) -> None:
    for error in seen.refused.values():
        assert error.code() is grpc.StatusCode.UNIMPLEMENTED
        assert "this verifier has no adapter 'green'" in str(error.details())


def test_adapters_are_listed_and_change_no_fingerprint_of_the_model(seen: Seen) -> None:
    ours, native = seen.info
    assert {each.name for each in ours.adapters} == set(NAMES[1:])
    assert not native.adapters
    fingerprints = {ours.system_fingerprint, *(each.system_fingerprint for each in ours.adapters)}
    assert len(fingerprints) == len(NAMES)
