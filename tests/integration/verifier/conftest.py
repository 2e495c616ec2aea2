"""A verifier on a tiny target, with whatever drafters a test scripts."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from protos.verifier.v1 import verifier_pb2 as pb
from protos.verifier.v1 import verifier_pb2_grpc
from specdec.engine import NativeEngine
from specdec.rules.params import Mode, SamplingParams
from specdec.serving.channel import open_channel
from specdec.wire.params import mode_to_pb, sampling_to_pb
from specdec.wire.tokens import tokens_from_bytes, tokens_to_bytes
from tests.integration.verifier.scripted_drafter import RunningDrafter, Script, ScriptedDrafter, eventually
from tests.tiny_models import make_tiny_model
from verifier_service.app import verifier
from verifier_service.config import VerifierSettings

PROMPT = (40, 41, 42, 43, 44, 45, 46)
LENGTH = 40
"""Output tokens of the reference."""


@dataclass(frozen=True)
class Target:
    """A tiny model and what transformers itself makes of prompts."""

    folder: Path
    tokenizer_hash: str
    greedy: Callable[[Sequence[int], int], list[int]]


@pytest.fixture(scope="session")
def target(tmp_path_factory: pytest.TempPathFactory) -> Target:
    return load_target(make_tiny_model(tmp_path_factory.mktemp("target"), "llama", seed=3))


@pytest.fixture(scope="session")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Target:
    """Heads so wide that a page has 16 tokens, and a long context."""
    folder = tmp_path_factory.mktemp("wide")
    return load_target(make_tiny_model(folder, "llama", seed=3, head_dim=64, context=9000))


def load_target(folder: Path) -> Target:
    """Load a folder with transformers."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()

    @cache
    def remembered(prompt: tuple[int, ...], count: int) -> list[int]:
        ids = torch.tensor([prompt])
        made = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            max_new_tokens=count,
            eos_token_id=None,
            pad_token_id=0,
        )
        return list(made[0, len(prompt) :].tolist())

    engine = NativeEngine.load(folder, dtype="float32", device="cpu", kv_bytes=2**20, threads=1)
    return Target(folder, engine.tokenizer_hash, lambda prompt, count: remembered(tuple(prompt), count))


@dataclass
class Client:
    """Speaks to a verifier as the gateway does."""

    stub: Any

    def call(
        self,
        tokens: Sequence[int] = PROMPT,
        *,
        session: str = "s",
        epoch: int = 1,
        prompt_len: int | None = None,
        params: SamplingParams | None = None,
        max_tokens: int = LENGTH,
        stop: Sequence[int] = (),
        mode: Mode = Mode.REJECTION,
        gamma: int | None = None,
        lenience: float | None = None,
        logprobs: int | None = None,
        salt: str = "",
    ) -> Any:
        """Begin a generation."""
        speculation = pb.Speculation(mode=mode_to_pb(mode), gamma=gamma, lenience=lenience)
        return self.stub.Generate(
            pb.GenerateRequest(
                session_id=session,
                epoch=epoch,
                tokens=tokens_to_bytes(tokens),
                prompt_len=len(tokens) if prompt_len is None else prompt_len,
                sampling=sampling_to_pb(params or SamplingParams(temperature=0.0)),
                max_tokens=max_tokens,
                stop_token_ids=stop,
                speculation=speculation,
                logprobs=logprobs,
                cache_salt=salt,
            )
        )

    async def rounds(self, *arguments: Any, **options: Any) -> list[pb.GenerateResponse]:
        """The whole generation, checked for gaps."""
        rounds = [response async for response in self.call(*arguments, **options)]
        for earlier, later in pairwise(rounds):
            assert later.base_len == earlier.base_len + len(earlier.tokens) // 4
        return rounds

    async def info(self) -> pb.GetVerifierInfoResponse:
        """What the verifier says of itself."""
        return await self.stub.GetVerifierInfo(pb.GetVerifierInfoRequest())


def output(rounds: Sequence[pb.GenerateResponse]) -> list[int]:
    """Every committed token."""
    return [token for response in rounds for token in tokens_from_bytes(response.tokens)]


def reasons(rounds: Sequence[pb.GenerateResponse]) -> set[str]:
    """The fallback reasons there were."""
    return {response.fallback_reason for response in rounds} - {""}


@asynccontextmanager
async def connected(address: str) -> AsyncIterator[Client]:
    """A client of the verifier at `address`."""
    async with open_channel(address) as channel:
        yield Client(verifier_pb2_grpc.VerifierServiceStub(channel))


@dataclass
class House:
    """Starts what a test needs; everything ends with the test."""

    target: Target
    stack: AsyncExitStack

    async def drafter(self, script: Script, **options: Any) -> RunningDrafter:
        """A scripted drafter with the target's tokenizer."""
        options.setdefault("tokenizer_hash", self.target.tokenizer_hash)
        running = await RunningDrafter.start(ScriptedDrafter(script, **options))
        self.stack.push_async_callback(running.server.stop, 0)
        return running

    async def verifier(self, *drafters: RunningDrafter | str, wait: bool = True, **settings: Any) -> Client:
        """A verifier that knows `drafters`, once it has met them."""
        addresses = [each if isinstance(each, str) else each.address for each in drafters]
        base = {"address": "127.0.0.1:0", "http": "127.0.0.1:0", "drafters": addresses, "kv_bytes": 2**22}
        drafting = {"drafting": {"timeout": 5.0}}
        overrides = {"model": {"path": self.target.folder, "device": "cpu"}, **base, **drafting, **settings}
        server = await self.stack.enter_async_context(verifier(VerifierSettings.load(None, overrides)))
        client = await self.stack.enter_async_context(connected(server.address))
        if wait:
            for each in drafters:
                if isinstance(each, RunningDrafter):
                    await eventually(lambda each=each: each.servicer.streams > 0)  # type: ignore[misc]
            await self.settled(client)
        return client

    async def settled(self, client: Client) -> None:
        """Wait until no drafter is being connected to."""
        states = ["connecting"]
        while "connecting" in states:
            states = [drafter.state for drafter in (await client.info()).drafters]


@pytest.fixture
async def house(target: Target) -> AsyncIterator[House]:
    async with AsyncExitStack() as stack:
        yield House(target, stack)


async def free_addresses(count: int) -> list[str]:
    """Loopback addresses that nobody listens on now."""
    servers = [await asyncio.start_server(lambda *_: None, "127.0.0.1", 0) for _ in range(count)]
    found = [f"127.0.0.1:{server.sockets[0].getsockname()[1]}" for server in servers]
    for server in servers:
        server.close()
        await server.wait_closed()
    return found


@pytest.fixture
async def http() -> str:
    """Where a verifier may answer for its metrics."""
    (address,) = await free_addresses(1)
    return address


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Everything in this folder crosses a socket."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.integration)
