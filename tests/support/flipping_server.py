"""A gRPC interceptor that corrupts responses after serialization and checksumming."""

import random
from collections.abc import Awaitable, Callable
from typing import Any

import grpc.aio

from specdec.serving.rpc.channel import MAX_MESSAGE_BYTES
from specdec.serving.rpc.decoding import DecodeInterceptor, rebuilt
from specdec.serving.rpc.interceptors import ErrorInterceptor


class FlipInterceptor(grpc.aio.ServerInterceptor):
    """Change one byte in a share of the responses, of any method."""

    def __init__(self, share: float, seed: int) -> None:
        """`share` is the fraction of the responses that are changed."""
        self._share = share
        self._rng = random.Random(seed)
        self.flips = 0
        """Number of changed responses."""

    async def intercept_service(
        self, continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]], details: grpc.HandlerCallDetails
    ) -> Any:
        handler = await continuation(details)
        encode = handler.response_serializer
        return rebuilt(handler, handler.request_deserializer, lambda message: self._flipped(encode(message)))

    def _flipped(self, raw: bytes) -> bytes:
        if self._rng.random() >= self._share:
            return raw
        self.flips += 1
        changed = bytearray(raw)
        changed[self._rng.randrange(len(changed))] ^= self._rng.randrange(1, 256)
        return bytes(changed)


def flipping_server(flips: FlipInterceptor) -> tuple[grpc.aio.Server, str]:
    """Return a server like that of every service, whose responses are corrupted after checksumming, and its address."""
    interceptors = [flips, ErrorInterceptor(), DecodeInterceptor(MAX_MESSAGE_BYTES)]
    server = grpc.aio.server(interceptors=interceptors, options=[("grpc.so_reuseport", 0)])
    return server, f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
