"""Arguments passed through to vLLM: a target on two ranks, one with an adapter, and one with quantised weights.

Each target runs on a CPU, one after another, with one drafter. The expected tokens are those of the native engine on
the same weights. The native engine has no quantised weights, so there the expected tokens are vLLM's own without
drafts.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from specdec.rules.speculation import Mode
from specdec.sampling.grammar import Grammar, GrammarKind
from specdec.sampling.params import SamplingParams
from tests.conformance.served_pair import Ask, Done, generate, running_drafter, running_verifier
from tests.vllm.adapters import copy_model, write_adapter
from tests.vllm.server import HAS_VLLM, ROOT, vllm_verifier

pytestmark = [HAS_VLLM, pytest.mark.integration, pytest.mark.timeout(1800)]

DEMO = ROOT / "models" / "demo"
TOKENS = 32
COUNT = 4
KINDS = {
    "greedy": (Mode.REJECTION, 0.0, None),
    "greedy, off": (Mode.OFF, 0.0, None),
    "coupled": (Mode.COUPLED, 1.0, None),
    "coupled, off": (Mode.OFF, 1.0, None),
    "grammar": (Mode.COUPLED, 1.0, Grammar(GrammarKind.REGEX, "[a-z ]+")),
}
QUANTISED = {
    "quant_method": "compressed-tensors",
    "format": "int-quantized",
    "quantization_status": "compressed",
    "ignore": ["lm_head"],
    "config_groups": {
        "group_0": {
            "targets": ["Linear"],
            "weights": {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "channel", "dynamic": False},
            "input_activations": {
                "num_bits": 8, "type": "int", "symmetric": True, "strategy": "token", "dynamic": True,
            },
        }
    },
}  # fmt: skip
"""Eight-bit weights with one scale for each output, and eight-bit activations with one scale for each token."""


@dataclass(frozen=True)
class Served:
    """The answers of one verifier on vLLM."""

    done: Mapping[str, Sequence[Done]]
    fingerprint: str

    def tokens(self, name: str) -> list[tuple[int, ...]]:
        """Return the token sequences of one kind."""
        return [each.tokens for each in self.done[name]]


@dataclass(frozen=True)
class Seen:
    """The answers of all verifiers."""

    native: Mapping[str, Sequence[Done]]
    merged: Mapping[str, Sequence[Done]]
    """Answers of the native engine, with the adapter merged into the weights."""
    parallel: Served
    adapted: Served
    quantised: Served
    plain_fingerprint: str


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Seen:
    return asyncio.run(_seen(tmp_path_factory.mktemp("arguments")))


async def _seen(folder: Path) -> Seen:
    adapter, merged, quantised = (folder / name for name in ("adapter", "merged", "quantised"))
    write_adapter(DEMO / "target", adapter, merged)
    _write_quantised(quantised)
    async with running_drafter(DEMO / "drafter") as drafts:
        async with _native(DEMO / "target", drafts.address) as client:
            native, fingerprint = await _all(client), (await client.info()).system_fingerprint
        async with _native(merged, drafts.address) as client:
            of_merged = await _all(client)
        return Seen(
            native,
            of_merged,
            await _on_two_ranks(folder, drafts.address),
            await _served(DEMO / "target", folder, drafts.address, lora=str(adapter)),
            await _served(quantised, folder, drafts.address, dtype="bfloat16"),
            fingerprint,
        )


@asynccontextmanager
async def _native(target: Path, drafter: str) -> AsyncIterator[Any]:
    async with running_verifier(target, drafter, kv_bytes=2**27) as client:
        yield client


async def _on_two_ranks(folder: Path, drafter: str) -> Served:
    """Run on two ranks with a core each. On a machine with one NUMA node, vLLM needs the cores as an argument."""
    cores = "|".join(map(str, sorted(os.sched_getaffinity(0))[:2]))
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("VLLM_CPU_OMP_THREADS_BIND", cores)
        return await _served(DEMO / "target", folder, drafter, engine_args={"tensor_parallel_size": 2})


async def _served(target: Path, folder: Path, drafter: str, dtype: str = "float32", **vllm: Any) -> Served:
    settings = {"kv_bytes": 2**27, "model": {"path": str(target), "dtype": dtype}, "vllm": vllm}
    async with vllm_verifier(target, folder, drafter, **settings) as verifier:
        return Served(await _all(verifier.client), (await verifier.client.info()).system_fingerprint)


async def _all(client: Any) -> dict[str, list[Done]]:
    return {name: await generate(client, _asks(*kind), COUNT) for name, kind in KINDS.items()}


def _asks(mode: Mode, temperature: float, grammar: Grammar | None) -> list[Ask]:
    prompts = [tuple(range(10 + at, 60 + at)) for at in range(COUNT)]
    return [
        Ask(mode, SamplingParams(temperature=temperature, seed=at, grammar=grammar), 4, prompt, TOKENS)
        for at, prompt in enumerate(prompts)
    ]


def _write_quantised(folder: Path) -> None:
    """Write the target with the weights of every product in eight bits, in the format of `compressed-tensors`."""
    weights = dict[str, torch.Tensor]()
    for name, weight in load_file(DEMO / "target" / "model.safetensors").items():
        if "_proj." not in name:
            weights[name] = weight
            continue
        scale = weight.float().abs().amax(-1, keepdim=True) / 127
        weights[name] = (weight.float() / scale).round().to(torch.int8)
        weights[name.replace(".weight", ".weight_scale")] = scale
    copy_model(DEMO / "target", folder, {"quantization_config": QUANTISED})
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


@pytest.mark.parametrize("name", KINDS)
def test_two_ranks_give_the_tokens_of_the_native_engine(name: str, seen: Seen) -> None:
    assert seen.parallel.tokens(name) == [done.tokens for done in seen.native[name]]
    assert seen.parallel.fingerprint == seen.plain_fingerprint


@pytest.mark.parametrize("name", KINDS)
def test_an_adapter_gives_the_tokens_of_the_weights_it_is_merged_into(name: str, seen: Seen) -> None:
    assert seen.adapted.tokens(name) == [done.tokens for done in seen.merged[name]]
    assert seen.adapted.tokens(name) != [done.tokens for done in seen.native[name]]


@pytest.mark.parametrize("name", ["greedy", "coupled"])
def test_quantised_weights_give_the_same_tokens_with_drafts_and_without(name: str, seen: Seen) -> None:
    assert seen.quantised.tokens(name) == seen.quantised.tokens(f"{name}, off")
    assert seen.quantised.tokens(name) != [done.tokens for done in seen.native[name]]


@pytest.mark.parametrize("served", ["parallel", "adapted", "quantised"])
def test_drafts_are_accepted(served: str, seen: Seen) -> None:
    rounds = [each for done in getattr(seen, served).done["greedy"] for each in done.rounds]
    assert sum(each.accepted for each in rounds) > 0


def test_other_weights_have_another_fingerprint(seen: Seen) -> None:
    fingerprints = {seen.plain_fingerprint, seen.adapted.fingerprint, seen.quantised.fingerprint}
    assert len(fingerprints) == 3
