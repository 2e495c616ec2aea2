"""gRPC client of hop 1, from gateway to verifier."""

import asyncio
import math
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Sequence
from contextlib import aclosing, contextmanager
from typing import Any, cast

import grpc.aio

from specdec.errors import DeadlineExceeded, Draining, MessageCorrupted, NoVerifier, SpecdecError
from specdec.protos.verifier.v1 import verifier_pb2 as pb
from specdec.protos.verifier.v1.verifier_pb2_grpc import VerifierServiceStub
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
"""Callback that receives all tokens of a sequence after each commit."""

_KV_TIMEOUT = 30.0
"""Timeout of a block transfer, in seconds; generations stop waiting for one much earlier."""
_KEPT = 3600.0
"""Seconds for which calls may continue on a replaced channel."""


class VerifierRefused(NoVerifier):
    """Raised if the peer requires another token than this gateway's, or is not a verifier."""


class VerifierClient:
    """Client of one verifier replica, over one gRPC channel.

    Every method except `info` and `close` raises NoVerifier if the connection is lost or an answer cannot be read,
    DeadlineExceeded on timeout, and the verifier's own error if it refuses the call.
    """

    def __init__(self, address: str, access: Access = UNGUARDED, silence: float = SILENCE) -> None:
        """Args: silence: seconds without a message or heartbeat after which a generation's stream is lost."""
        self.address = address
        self._access = access
        self._silence = silence
        self._info: VerifierInfo | None = None
        self.heard = -math.inf
        """Time of the last generation message on the current channel, by `time.monotonic`."""
        self.dialled = 0
        """Number of channels opened so far; a stream belongs to the channel that was current at its start."""
        self._closing: set[asyncio.Task[None]] = set()
        self._dial()

    def _dial(self) -> None:
        certificates = self._access.certificates
        self._pems = certificates and certificates.pems
        self.dialled += 1
        self._channel = open_channel(self.address, self._access)
        self._stub = VerifierServiceStub(self._channel)

    def redial(self) -> None:
        """Replace the channel, whose connection may be stuck although it answers pings; old calls continue."""
        closing = asyncio.create_task(self._channel.close(_KEPT))
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)
        self._dial()

    def _redial_with_new_certificates(self) -> None:
        """Replace a broken channel with outdated certificates: a channel keeps the certificates of its start."""
        certificates = self._access.certificates
        if certificates and certificates.pems != self._pems:
            self.redial()

    async def info(self, timeout: float) -> VerifierInfo:
        """Query the facts about the verifier's model. If it is unreachable and certificates changed, dial again.

        Raises:
            Draining: the verifier is shutting down.
            DeadlineExceeded: the verifier does not answer within `timeout` seconds.
            VerifierRefused: the peer requires another token, or is not a verifier.
            NoVerifier: the verifier cannot be reached, or its answer cannot be read.
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
        """Prepare the verifier for a generation within `timeout` seconds; return the callback for commits."""
        return _ignore

    async def serve(self, orders: AsyncIterator[Orders]) -> AsyncGenerator[Pass]:
        """Send orders, and yield the passes and heartbeats of their generations; closing the iterator ends these."""
        async with aclosing(self._answers(lambda stub: stub.Serve(cast(Any, _messages(orders))))) as answers:
            async for message in answers:
                with self._errors():
                    done = pass_from_pb(message)
                yield done

    async def generate(self, call: GenerationCall, timeout: float) -> AsyncGenerator[Round]:
        """Yield the rounds of one generation of at most `timeout` seconds; closing the iterator cancels it."""
        request = call_to_pb(call)
        request.heartbeats = True
        async with aclosing(self._answers(lambda stub: stub.Generate(request, timeout=timeout))) as answers:
            async for message in answers:
                if not message.heartbeat:
                    with self._errors():
                        verified = round_from_pb(message)
                    yield verified

    async def _answers(self, call: Callable[[VerifierServiceStub], Any]) -> AsyncGenerator[Any]:
        """Yield the messages of a call; closing the iterator cancels it."""
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
        """Return the next message of a call; None after the last one."""
        beats = self._info is not None and self._info.heartbeats
        try:
            async with asyncio.timeout(self._silence if beats else None):
                with self._errors():
                    message: Any = await rpc.read()
                    return None if message is grpc.aio.EOF else received(message)
        except TimeoutError as error:
            raise NoVerifier(f"verifier {self.address} was lost: its stream is silent") from error

    async def find_kv(self, tokens: Sequence[int], cache_salt: str) -> int:
        """Return the number of leading `tokens` in the verifier's prefix cache."""
        request = pb.FindKvRequest(tokens=tokens_to_bytes(tokens), cache_salt=cache_salt)
        with self._errors():
            return int(received(await self._stub.FindKv(request, timeout=_KV_TIMEOUT)).held)

    async def export_kv(self, start: int, tokens: Sequence[int], cache_salt: str) -> bytes:
        """Return the value of the block of `tokens[start:]`; empty if the verifier does not have it."""
        request = pb.ExportKvRequest(tokens=tokens_to_bytes(tokens), cache_salt=cache_salt, start=start)
        with self._errors():
            pieces = self._stub.ExportKv(request, timeout=_KV_TIMEOUT)
            return b"".join([received(message).data async for message in pieces])

    async def restore_kv(self, span: KvSpan, values: Sequence[bytes]) -> tuple[int, str]:
        """Send the values of a span to the verifier, one per block.

        Returns:
            Number of tokens that the verifier then has, and the reason if it did not take all; otherwise empty.
        """
        with self._errors():
            answer = received(await self._stub.RestoreKv(restore_to_pb(span, values), timeout=_KV_TIMEOUT))
            return answer.held, answer.miss

    async def close(self) -> None:
        """Close the channel and the replaced ones."""
        for closing in self._closing:
            closing.cancel()
        await asyncio.gather(self._channel.close(), *self._closing, return_exceptions=True)

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """Convert failures of a call to the product's errors; an unreadable answer raises NoVerifier."""
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
    """Ignore progress."""


async def _messages(orders: AsyncIterator[Orders]) -> AsyncIterator[pb.ServeRequest]:
    async for each in orders:
        yield orders_to_pb(each)
