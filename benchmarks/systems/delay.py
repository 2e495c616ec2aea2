"""A network with a round trip: a TCP proxy that forwards every byte in order, half a round trip after its arrival."""

import asyncio
import threading
from contextlib import suppress
from typing import Self

_CHUNK = 65_536
_UNSENT = 1024
"""Number of pieces in flight in one direction of a connection at which the proxy stops reading."""


class DelayingProxy:
    """Listens on loopback and forwards bytes to and from one server, on its own thread.

    Any number of pieces are in flight at once, so a delay takes no bandwidth, and pieces stay in order.
    """

    def __init__(self, server: str) -> None:
        """Set the server, `host:port`, which is connected when a client connects."""
        self._server = server
        self.round_trip = 0.0
        """Seconds, half of which apply to each direction. A new value applies to bytes that arrive from now on."""
        self.address = ""
        """Address for clients, set inside the context."""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="delay", daemon=True)
        self._serving: set[asyncio.Task[None]] = set()

    def __enter__(self) -> Self:
        self._thread.start()
        self._listener = asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result()
        host, port = self._listener.sockets[0].getsockname()
        self.address = f"{host}:{port}"
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _listen(self) -> asyncio.Server:
        return await asyncio.start_server(self._accept, "127.0.0.1", 0)

    async def _close(self) -> None:
        self._listener.close()
        for task in self._serving:
            task.cancel()
        await asyncio.gather(*self._serving, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._serve(reader, writer))
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        host, port = self._server.rsplit(":", 1)
        try:
            with suppress(OSError):
                up_reader, up_writer = await asyncio.open_connection(host, int(port))
                try:
                    async with asyncio.TaskGroup() as ways:
                        ways.create_task(self._pass(reader, up_writer))
                        ways.create_task(self._pass(up_reader, writer))
                finally:
                    up_writer.transport.abort()
        finally:
            writer.transport.abort()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Copy one direction until its sender has ended, and deliver everything in flight."""
        under_way: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(_UNSENT)
        async with asyncio.TaskGroup() as parts:
            parts.create_task(self._read(reader, under_way))
            parts.create_task(self._write(under_way, writer))

    async def _read(self, reader: asyncio.StreamReader, under_way: asyncio.Queue[tuple[float, bytes]]) -> None:
        data = b"first"
        while data:
            try:
                data = await reader.read(_CHUNK)
            except OSError:
                data = b""
            await under_way.put((self._loop.time() + self.round_trip / 2, data))

    async def _write(self, under_way: asyncio.Queue[tuple[float, bytes]], writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while True:
                due, data = await under_way.get()
                await asyncio.sleep(due - self._loop.time())
                if not data:
                    writer.write_eof()
                    return
                writer.write(data)
                await writer.drain()
