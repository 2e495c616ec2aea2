"""Hop 1, gateway to verifier, over gRPC."""

import asyncio
import math
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Sequence
from contextlib import aclosing, contextmanager
from typing import Any, cast

import grpc.aio

from protos.verifier.v1 import verifier_pb2 as pb
from protos.verifier.v1.verifier_pb2_grpc import VerifierServiceStub
from specdec.errors import DeadlineExceeded, Draining, MessageCorrupted, NoVerifier, SpecdecError
from specdec.serving.rpc.access import UNGUARDED, Access
from specdec.serving.rpc.channel import open_channel
from specdec.serving.rpc.checksum import received
from specdec.serving.rpc.status import from_rpc_error
from specdec.wire.generation import (
    SILENCE,
    GenerationCall,
    Round,
    VerifierInfo,
    call_to_pb,
    info_from_pb,
    round_from_pb,
)
from specdec.wire.kv import KvSpan, restore_to_pb
from specdec.wire.passes import Orders, Pass, orders_to_pb, pass_from_pb
from specdec.wire.tokens import tokens_to_bytes

Progress = Callable[[Sequence[int]], None]
"""Takes all tokens of a sequence after each commit."""

_KV_TIMEOUT = 30.0
"""Seconds after which a block transfer is given up; generations stop waiting for one much earlier."""
_KEPT = 3600.0
"""Seconds for which calls may go on over a channel that was replaced."""


class VerifierRefused(NoVerifier):
    """What answers asks for another token than this gateway has, or is no verifier."""


class VerifierClient:
    """One verifier replica, over one gRPC channel.

    Every method but `info` and `close` raises NoVerifier when the connection is lost or an answer cannot be read,
    DeadlineExceeded when the time is over, and the error that the verifier refused with.
    """

    def __init__(self, address: str, access: Access = UNGUARDED, silence: float = SILENCE) -> None:
        """A generation whose stream has nothing for `silence` seconds, not even a heartbeat, is lost."""
        self.address = address
        self._access = access
        self._silence = silence
        self._info: VerifierInfo | None = None
        self.heard = -math.inf
        """The `time.monotonic()` at which a message of a generation came last over the channel that new calls have."""
        self.dialled = 0
        """Number of channels opened so far; a stream belongs to the channel that was the last when it began."""
        self._closing: set[asyncio.Task[None]] = set()
        self._dial()

    def _dial(self) -> None:
        certificates = self._access.certificates
        self._pems = certificates and certificates.pems
        self.dialled += 1
        self._channel = open_channel(self.address, self._access)
        self._stub = VerifierServiceStub(self._channel)

    def redial(self) -> None:
        """Replace the channel, whose connection may answer pings and carry nothing else; calls on the old one go on."""
        closing = asyncio.create_task(self._channel.close(_KEPT))
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)
        self._dial()

    def _redial_with_new_certificates(self) -> None:
        """Replace a broken channel whose certificates are out of date: a channel keeps those it was opened with."""
        certificates = self._access.certificates
        if certificates and certificates.pems != self._pems:
            self.redial()

    async def info(self, timeout: float) -> VerifierInfo:
        """The facts about its model, asked anew; an unreachable verifier is dialled again if certificates changed.

        Raises:
            Draining: it is shutting down.
            DeadlineExceeded: it does not answer within `timeout` seconds.
            VerifierRefused: it asks for another token, or is no verifier.
            NoVerifier: it cannot be reached, or its answer cannot be read.
        """
        try:
            with self._errors():
                answer = await self._stub.GetVerifierInfo(pb.GetVerifierInfoRequest(), timeout=timeout)
                self._info = info_from_pb(received(answer))
                return self._info
        except (Draining, DeadlineExceeded, VerifierRefused):
            raise
        except SpecdecError as error:
            self._redial_with_new_certificates()
            raise NoVerifier(f"verifier {self.address} does not answer: {error.message}") from error

    async def begin(self, call: GenerationCall, timeout: float) -> Progress:
        """Prepare the verifier for a generation, within `timeout` seconds; what it returns hears of each commit."""
        return _ignore

    async def serve(self, orders: AsyncIterator[Orders]) -> AsyncGenerator[Pass]:
        """Send orders, and yield the passes and heartbeats of the generations that they open; closing it ends these."""
        async with aclosing(self._answers(lambda stub: stub.Serve(cast(Any, _messages(orders))))) as answers:
            async for message in answers:
                with self._errors():
                    done = pass_from_pb(message)
                yield done

    async def generate(self, call: GenerationCall, timeout: float) -> AsyncGenerator[Round]:
        """The rounds of one generation of at most `timeout` seconds; closing the iterator cancels the generation."""
        request = call_to_pb(call)
        request.heartbeats = True
        async with aclosing(self._answers(lambda stub: stub.Generate(request, timeout=timeout))) as answers:
            async for message in answers:
                if not message.heartbeat:
                    with self._errors():
                        verified = round_from_pb(message)
                    yield verified

    async def _answers(self, call: Callable[[VerifierServiceStub], Any]) -> AsyncGenerator[Any]:
        """The messages of a call, which is cancelled when the iterator is closed."""
        stub = self._stub
        rpc = call(stub)
        try:
            while (message := await self._next(rpc)) is not None:
                if stub is self._stub:
                    self.heard = time.monotonic()
                yield message
        finally:
            rpc.cancel()

    async def _next(self, rpc: Any) -> Any:
        """The next message of a call; None after the last one."""
        beats = self._info is not None and self._info.heartbeats
        try:
            async with asyncio.timeout(self._silence if beats else None):
                with self._errors():
                    message: Any = await rpc.read()
                    return None if message is grpc.aio.EOF else received(message)
        except TimeoutError as error:
            raise NoVerifier(f"verifier {self.address} was lost: its stream is silent") from error

    async def find_kv(self, tokens: Sequence[int], cache_salt: str) -> int:
        """How many of `tokens`, from the first on, the verifier has in its prefix cache."""
        request = pb.FindKvRequest(tokens=tokens_to_bytes(tokens), cache_salt=cache_salt)
        with self._errors():
            return int(received(await self._stub.FindKv(request, timeout=_KV_TIMEOUT)).held)

    async def export_kv(self, start: int, tokens: Sequence[int], cache_salt: str) -> bytes:
        """The value of the block of `tokens[start:]`; empty when the verifier does not have it."""
        request = pb.ExportKvRequest(tokens=tokens_to_bytes(tokens), cache_salt=cache_salt, start=start)
        with self._errors():
            pieces = self._stub.ExportKv(request, timeout=_KV_TIMEOUT)
            return b"".join([received(message).data async for message in pieces])

    async def restore_kv(self, span: KvSpan, values: Sequence[bytes]) -> tuple[int, str]:
        """Give the verifier the values of a span, one for each block.

        Returns:
            How many tokens it has then, and why it took no more; the reason is empty when it took all.
        """
        with self._errors():
            answer = received(await self._stub.RestoreKv(restore_to_pb(span, values), timeout=_KV_TIMEOUT))
            return answer.held, answer.miss

    async def close(self) -> None:
        """Close the channel, and those that were replaced."""
        for closing in self._closing:
            closing.cancel()
        await asyncio.gather(self._channel.close(), *self._closing, return_exceptions=True)

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """Raise what a call fails with as the product's own errors; whoever sends what cannot be read is lost."""
        try:
            yield
        except grpc.RpcError as error:
            raise self._failure(error) from error
        except Exception as error:  # reading what a broken peer sends may fail in any way
            raise NoVerifier(f"verifier {self.address} was lost: its answer cannot be read ({error})") from error

    def _failure(self, error: grpc.RpcError) -> SpecdecError:
        known = from_rpc_error(error)
        if known is not None and not isinstance(known, MessageCorrupted):
            return known
        code = error.code() if isinstance(error, grpc.aio.AioRpcError) else grpc.StatusCode.UNKNOWN
        match code:
            case grpc.StatusCode.UNAUTHENTICATED:
                return VerifierRefused(f"verifier {self.address} asks for another token than this gateway's")
            case grpc.StatusCode.UNIMPLEMENTED:
                return VerifierRefused(f"{self.address} is no verifier's: is it that of a drafter, or of a gateway?")
            case grpc.StatusCode.DEADLINE_EXCEEDED:
                return DeadlineExceeded(f"verifier {self.address} did not answer before the deadline")
        return NoVerifier(f"verifier {self.address} was lost: {code.name}")


def _ignore(tokens: Sequence[int]) -> None:
    """Progress of which nobody needs to hear."""


async def _messages(orders: AsyncIterator[Orders]) -> AsyncIterator[pb.ServeRequest]:
    async for each in orders:
        yield orders_to_pb(each)
