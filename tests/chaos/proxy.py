"""A TCP proxy between two processes whose connections can be cut and frozen, and whose bytes can be flipped."""

import asyncio
import random
from collections.abc import Callable
from contextlib import suppress
from typing import Self

_CHUNK = 65_536


class Flips:
    """Changes bytes at random."""

    def __init__(self, every: float, seed: int) -> None:
        """Change one of `every` bytes on average."""
        self._every = every
        self._rng = random.Random(seed)
        self._left = self._rng.expovariate(1 / every)
        self.count = 0
        """Number of changed bytes."""

    def __call__(self, data: bytes) -> bytes:
        spoiled = bytearray(data)
        while self._left < len(data):
            spoiled[int(self._left)] ^= self._rng.randrange(1, 256)
            self._left += 1 + self._rng.expovariate(1 / self._every)
            self.count += 1
        self._left -= len(data)
        return bytes(spoiled)


class Proxy:
    """Listens on its own loopback port and forwards bytes to and from one server."""

    def __init__(self, server: str) -> None:
        """Set the server, `host:port` or the path of a socket file."""
        self._server = server
        self._flows = asyncio.Event()
        self._flows.set()
        self._cut: set[asyncio.StreamWriter] = set()
        self._open: set[asyncio.StreamWriter] = set()
        self._serving: set[asyncio.Task[None]] = set()
        self._spoil: Callable[[bytes], bytes] = bytes

    async def __aenter__(self) -> Self:
        self._listener = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        host, port = self._listener.sockets[0].getsockname()
        self.address = f"{host}:{port}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._listener.close()
        self.thaw()
        for writer in self._open:
            writer.transport.abort()
        await asyncio.gather(*self._serving)

    def cut(self) -> None:
        """Close every open connection instead of forwarding the server's next answer.

        No client knows that the server has acted.
        """
        self._cut |= self._open

    def freeze(self) -> None:
        """Forward nothing, and keep the connections open."""
        self._flows.clear()

    def thaw(self) -> None:
        """Forward bytes again, including those held back."""
        self._flows.set()

    def spoil(self, spoil: Callable[[bytes], bytes] = bytes) -> None:
        """Forward the output of `spoil` for the bytes of both directions, by default the unchanged bytes."""
        self._spoil = spoil

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._serve(reader, writer))
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open.add(writer)
        try:
            with suppress(OSError):
                up_reader, up_writer = await self._dial()
                await self._forward(reader, writer, up_reader, up_writer)
        finally:
            self._open.discard(writer)
            self._cut.discard(writer)
            writer.transport.abort()

    async def _forward(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        up_reader: asyncio.StreamReader,
        up_writer: asyncio.StreamWriter,
    ) -> None:
        """Forward in both directions until one side closes, then close both."""
        requests = asyncio.create_task(self._pass(reader, up_writer, None))
        try:
            await self._pass(up_reader, writer, writer)
        finally:
            writer.transport.abort()
            up_writer.transport.abort()
        await requests

    async def _dial(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self._server.startswith("/"):
            return await asyncio.open_unix_connection(self._server)
        host, port = self._server.rsplit(":", 1)
        return await asyncio.open_connection(host, int(port))

    async def _pass(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, client: asyncio.StreamWriter | None
    ) -> None:
        """Copy until either side has closed. Answers, which have a `client`, end when its connection is cut."""
        with suppress(OSError):
            while data := await reader.read(_CHUNK):
                await self._flows.wait()
                if client in self._cut:
                    return
                writer.write(self._spoil(data))
                await writer.drain()
        if client is None:
            writer.transport.abort()
