"""A scripted drafter: a real gRPC server whose drafts a test writes."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import grpc
import grpc.aio

from specdec.protos.drafter.v1 import drafter_pb2 as pb
from specdec.protos.drafter.v1 import drafter_pb2_grpc
from specdec.rules.prefix import PrefixHash
from specdec.serving.rpc.channel import MAX_MESSAGE_BYTES
from specdec.serving.rpc.decoding import DecodeInterceptor
from specdec.wire.tokens import tokens_from_bytes, tokens_to_bytes


@dataclass
class Seen:
    """The verifier's messages about one session."""

    session_id: str
    epoch: int
    tokens: list[int]
    prompt_len: int
    opened: int = 1


Script = Callable[[Seen, int], Sequence[pb.DraftResponse]]
"""Function from a session and its γ to the responses."""


def drafts(seen: Seen, tokens: Sequence[int], *, base_len: int | None = None, flip: int = 0) -> pb.DraftResponse:
    """Return point-mass drafts for the session's prefix, or for an earlier one; `flip` corrupts the hash."""
    base = len(seen.tokens) if base_len is None else base_len
    message = pb.DraftTokens(
        session_id=seen.session_id,
        epoch=seen.epoch,
        base_len=base,
        prefix_hash=PrefixHash(seen.tokens[:base]).value ^ flip,
        tokens=tokens_to_bytes(tokens),
        support_sizes=[1] * len(tokens),
        support_ids=tokens_to_bytes(tokens),
        support_weights=b"\1\0" * len(tokens),
    )
    return pb.DraftResponse(drafts=[message])


@dataclass
class ScriptedDrafter(drafter_pb2_grpc.DrafterServiceServicer):
    """Answers Opens and Commits by a script, and ends the stream after `dies_after` messages."""

    script: Script
    tokenizer_hash: str
    dies_after: int | None = None
    refuses: bool = False
    step_seconds: float = 1e-4
    """Duration of a draft step that the drafter reports."""
    outcomes: int = 0
    """Maximum number of outcomes for which the drafter reports that it pushes chains."""
    sessions: dict[str, Seen] = field(default_factory=dict)
    opens: list[pb.Open] = field(default_factory=list)
    closes: list[str] = field(default_factory=list)
    streams: int = 0
    handled: int = 0
    largest_frame: int = 0

    async def Draft(self, requests: AsyncIterator[pb.DraftRequest], context: Any) -> AsyncIterator[pb.DraftResponse]:
        hello = (await anext(aiter(requests))).hello
        self.streams += 1
        if self.refuses:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, "the tokenizers differ")
        assert hello.protocol == 1
        ack = pb.HelloAck(model="scripted", tokenizer_hash=self.tokenizer_hash, step_seconds=self.step_seconds)
        ack.outcomes = self.outcomes
        yield pb.DraftResponse(hello_ack=ack)
        async for request in requests:
            self.largest_frame = max(self.largest_frame, len(request.opens) + len(request.commits))
            for response in self._answers(request):
                yield response
            if self.dies_after is not None and self.handled >= self.dies_after:
                self.dies_after = None
                await context.abort(grpc.StatusCode.UNAVAILABLE, "killed")

    def _answers(self, request: pb.DraftRequest) -> list[pb.DraftResponse]:
        answers: list[pb.DraftResponse] = []
        for message in request.opens:
            self.opens.append(message)
            before = self.sessions.get(message.session_id)
            tokens = tokens_from_bytes(message.tokens)
            opened = before.opened + 1 if before else 1
            seen = Seen(message.session_id, message.epoch, tokens, message.prompt_len, opened)
            self.sessions[message.session_id] = seen
            answers += self._script(seen, message.gamma)
        for commit in request.commits:
            seen = self.sessions[commit.session_id]
            assert commit.base_len == len(seen.tokens), "commits continue one another"
            seen.tokens += tokens_from_bytes(commit.tokens)
            answers += self._script(seen, commit.gamma)
        self.closes += [close.session_id for close in request.closes]
        if request.HasField("ping"):
            answers.append(pb.DraftResponse(pong=pb.Pong(nonce=request.ping.nonce)))
        return answers

    def _script(self, seen: Seen, gamma: int) -> Sequence[pb.DraftResponse]:
        self.handled += 1
        return self.script(seen, gamma)


@dataclass
class RunningDrafter:
    """A scripted drafter that listens."""

    servicer: ScriptedDrafter
    server: grpc.aio.Server
    address: str

    @classmethod
    async def start(cls, servicer: ScriptedDrafter, address: str = "127.0.0.1:0") -> "RunningDrafter":
        """Listen on a port."""
        checked = [DecodeInterceptor(MAX_MESSAGE_BYTES)]
        server = grpc.aio.server(interceptors=checked, options=[("grpc.so_reuseport", 0)])
        drafter_pb2_grpc.add_DrafterServiceServicer_to_server(servicer, server)
        port = server.add_insecure_port(address)
        await server.start()
        return cls(servicer, server, f"127.0.0.1:{port}")


async def eventually(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    """Wait for a condition."""
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 - what a test waits for has no event
            await asyncio.sleep(0.01)
