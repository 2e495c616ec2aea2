"""A client that calls a verifier as the gateway does."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from specdec.beams.options import BeamOptions
from specdec.protos.verifier.v1 import verifier_pb2 as pb
from specdec.protos.verifier.v1 import verifier_pb2_grpc
from specdec.rules.speculation import Mode, TreeOptions
from specdec.sampling.params import SamplingParams
from specdec.serving.rpc.channel import open_channel
from specdec.wire.beams import BEAM_OPTIONS
from specdec.wire.params import TREE, mode_to_pb, sampling_to_pb
from specdec.wire.tokens import tokens_from_bytes, tokens_to_bytes
from tests.integration.verifier.target import LENGTH, PROMPT


@dataclass
class Client:
    """Calls a verifier as the gateway does."""

    stub: Any
    address: str

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
        prompt_logprobs: int | None = None,
        salt: str = "",
        drafter: str = "",
        prediction: Sequence[int] = (),
        tree: TreeOptions | None = None,
        beams: BeamOptions | None = None,
        adapter: str = "",
    ) -> Any:
        """Start a generation."""
        speculation = pb.Speculation(
            mode=mode_to_pb(mode),
            gamma=gamma,
            lenience=lenience,
            drafter=drafter,
            prediction=tokens_to_bytes(prediction),
            tree=TREE.to_pb(tree),
        )
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
                prompt_logprobs=prompt_logprobs,
                cache_salt=salt,
                beams=BEAM_OPTIONS.to_pb(beams),
                adapter=adapter,
            )
        )

    async def rounds(self, *arguments: Any, **options: Any) -> list[pb.GenerateResponse]:
        """Return all rounds of a generation, after a check for gaps."""
        rounds = [response async for response in self.call(*arguments, **options)]
        for earlier, later in pairwise(rounds):
            assert later.base_len == earlier.base_len + len(earlier.tokens) // 4
        return rounds

    async def info(self) -> pb.GetVerifierInfoResponse:
        """Return the verifier's description of itself."""
        return await self.stub.GetVerifierInfo(pb.GetVerifierInfoRequest())


def output(rounds: Sequence[pb.GenerateResponse]) -> list[int]:
    """Return every committed token."""
    return [token for response in rounds for token in tokens_from_bytes(response.tokens)]


def reasons(rounds: Sequence[pb.GenerateResponse]) -> set[str]:
    """Return the fallback reasons of the rounds."""
    return {response.fallback_reason for response in rounds} - {""}


@asynccontextmanager
async def connected(address: str) -> AsyncIterator[Client]:
    """Return a client of the verifier at `address`. On a busy machine the connection may take several tries."""
    async with open_channel(address) as channel:
        await channel.channel_ready()
        yield Client(verifier_pb2_grpc.VerifierServiceStub(channel), address)
