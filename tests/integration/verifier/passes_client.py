"""The gateway's end of one stream of passes."""

from collections import defaultdict
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from specdec.errors import SpecdecError
from specdec.protos.verifier.v1 import verifier_pb2 as pb
from specdec.rules.speculation import Mode, Speculation
from specdec.sampling.params import SamplingParams
from specdec.serving.rpc.checksum import received
from specdec.serving.rpc.status import error_from_bytes
from specdec.wire.generation import GenerationCall, Round
from specdec.wire.passes import Opening, Orders, Pass, orders_to_pb, pass_from_pb
from tests.integration.verifier.client import Client
from tests.integration.verifier.target import LENGTH, PROMPT

FAR = 1 << 20
"""Enough credit for any generation of these tests."""


def make_call(session: str = "s", **changes: Any) -> GenerationCall:
    """Return a greedy call in rejection mode, with drafts as the verifier chooses."""
    values = {
        "session_id": session,
        "epoch": 1,
        "tokens": PROMPT,
        "prompt_len": len(PROMPT),
        "sampling": SamplingParams(temperature=0.0),
        "max_tokens": LENGTH,
        "stop_token_ids": (),
        "speculation": Speculation(Mode.REJECTION),
    }
    return GenerationCall(**(values | changes))


class PassesClient:
    """Sends orders and receives passes on one stream."""

    def __init__(self, call: Any) -> None:
        self.call = call
        self.passes: list[Pass] = []
        self.rounds: dict[int, list[Round]] = defaultdict(list)
        """Rounds by slot."""
        self.ended: dict[int, SpecdecError] = {}
        """Errors by slot."""

    async def order(self, *opens: Opening, cancels: tuple[int, ...] = (), credits: Mapping[int, int] = {}) -> None:
        """Send orders."""
        await self.send(orders_to_pb(Orders(opens, cancels, credits)))

    async def send(self, message: pb.ServeRequest) -> None:
        """Send a message unchanged."""
        await self.call.write(message)

    async def next(self) -> Pass | None:
        """Return the next pass, or None after the end of the stream."""
        message = received(await self.call.read())
        if not isinstance(message, pb.ServeResponse):
            return None
        done = pass_from_pb(message)
        self.passes.append(done)
        for slot, each in done.rounds:
            before = self.rounds[slot]
            assert not before or each.base_len == before[-1].base_len + len(before[-1].tokens), "no gap"
            before.append(each)
        self.ended |= {slot: error_from_bytes(status) for slot, status in done.ended.items()}
        return done

    async def until(self, *slots: int) -> None:
        """Read passes until these generations are over."""
        while not all(map(self.is_over, slots)):
            assert await self.next() is not None, "the stream has ended"

    def is_over(self, slot: int) -> bool:
        """Whether a generation has finished or failed."""
        return slot in self.ended or (slot in self.rounds and self.rounds[slot][-1].finish is not None)

    def output(self, slot: int) -> list[int]:
        """Return every committed token of a generation."""
        return [token for each in self.rounds[slot] for token in each.tokens]


@asynccontextmanager
async def serving(client: Client) -> AsyncIterator[PassesClient]:
    """Open a stream that ends with the context."""
    call = client.stub.Serve()
    try:
        yield PassesClient(call)
    finally:
        call.cancel()
