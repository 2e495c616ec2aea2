"""HTTP connection with bounds on arrival times, on the size of everything but the body, and on unread answers.

An unread answer is aborted after a timeout, which is shorter if its caller has many.
"""

import asyncio
import math
from collections import Counter, deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Protocol

import httptools
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from gateway.callers.caller import Share, network_of
from gateway.http.leaving import LeavingClient
from gateway.http.replies.answers import answered_share
from gateway.http.replies.problems import error_body
from specdec.errors import DeadlineExceeded, FieldInvalid, MessageTooLarge, QueueFull, SpecdecError
from specdec.serving.addresses import without_mapping

UNREAD_SECONDS = 30.0
"""Seconds that a client may leave an answer unread before its connection is closed and its work ends."""
CROWDED_SECONDS = 3.0
"""Timeout in seconds if the client's address or user already has the most unread answers."""
MOST_OF_ADDRESS = 32
"""Most unread answers of one address, all its users together, with the long timeout."""
MOST_OF_USER = 16
"""Most unread answers of one user, or of one key's tenant, with the long timeout."""
_OFFERED = (b"upgrade", b"http2-settings")
HEAD_BYTES = 64 * 1024
"""Largest head of a request, and most consecutive bytes outside a body."""
MAX_URL = 8 * 1024
"""Longest URL, in bytes."""
MAX_HEADERS = 256
"""Most headers and trailers of a request."""
ARRIVAL_SECONDS = 6.0
"""Timeout for the arrival of a request, in seconds, from its first byte or from the start of the connection."""
BYTES_PER_SECOND = 16 * 1024
"""Lowest transfer rate of a body: these bytes extend the arrival timeout by one second."""
MAX_PIECES = 4096
"""Most pieces of a body that are smaller than PIECE_BYTES on average; each costs the parser some microseconds."""
PIECE_BYTES = 64
MAX_PIPELINED = 16
"""Most pipelined requests that wait for the current answer; today's clients do not pipeline."""
AT_ONCE = 4
"""Most requests that begin in one iteration of the event loop; each takes one or two milliseconds until it waits."""
_BUSY = 0.1
"""Delay of the event loop, in seconds, above which a late request may have arrived without being read."""


class UnreadAnswers:
    """Number of unread answers of each caller, over all connections of a server."""

    def __init__(self) -> None:
        self._counts: Counter[Share | str] = Counter()

    def add(self, share: Share) -> float:
        """Count an answer that its client stopped reading; return its timeout in seconds."""
        self._counts.update(_keys(share))
        crowded = self._counts[share.client] > MOST_OF_ADDRESS or self._counts[share] > MOST_OF_USER
        return CROWDED_SECONDS if crowded else UNREAD_SECONDS

    def remove(self, share: Share) -> None:
        """Remove an answer that is read again or whose connection has ended."""
        self._counts.subtract(_keys(share))
        for key in _keys(share):
            if self._counts[key] <= 0:
                del self._counts[key]


def _keys(share: Share) -> Iterable[Share | str]:
    return (share.client, share)


class ArrivingRequests:
    """Requests that have arrived on all connections of a server and have not begun; addresses take turns.

    Without this limit, a burst of requests would begin in one iteration, and running answers would wait for all of it.
    """

    def __init__(self) -> None:
        self._waiting: dict[str, deque[Callable[[], bool]]] = {}
        """Requests by address, least recently served address first."""
        self._due = False
        """Whether `_begin_some` will run in the next iteration."""

    def add(self, address: str, begin: Callable[[], bool]) -> None:
        """Call `begin`, which returns whether it began work, in one of the next iterations of the event loop."""
        self._waiting.setdefault(address, deque()).append(begin)
        self._schedule()

    def _schedule(self) -> None:
        if self._waiting and not self._due:
            self._due = True
            asyncio.get_running_loop().call_soon(self._begin_some)

    def _begin_some(self) -> None:
        self._due, begun = False, 0
        while self._waiting and begun < AT_ONCE:
            address, requests = next(iter(self._waiting.items()))
            begin = requests.popleft()
            if not requests:
                del self._waiting[address]
            if begin():
                begun += 1
                if (rest := self._waiting.pop(address, None)) is not None:
                    self._waiting[address] = rest
        self._schedule()


class BoundedConnection(HttpToolsProtocol):
    """uvicorn's connection, which closes if a request is too slow or its head is too large."""

    transport: asyncio.Transport

    def __init__(self, unread: UnreadAnswers, arrivals: ArrivingRequests, *args: Any, **options: Any) -> None:
        """Args: unread: counts of the server's unread answers; arrivals: its queue; the others are uvicorn's."""
        super().__init__(*args, **options)
        self._all_unread = unread
        self._arrivals = arrivals
        self._address = ""
        self._begun = True
        """Whether the work on the current request has begun."""
        self.parser = SteadyParser(self)  # type: ignore[assignment]
        self._leaving: LeavingClient | None = None
        """Watcher of the client, set after the client has closed its sending half."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if self.client is not None:
            host, port = self.client
            self.client = without_mapping(host), port
        self._head = 0
        """Bytes in URL and headers of the arriving request."""
        self._headers = 0
        self._beside = 0
        """Bytes received since the last part of a body."""
        self._room: float = MAX_PIECES
        """Pieces of the arriving body that may still come; a byte brings room for a part of one."""
        self._due = math.inf
        """Deadline of the arriving request, in loop time; infinite if none arrives."""
        self._timer: asyncio.TimerHandle | None = None
        self._unread: tuple[Share, asyncio.TimerHandle] | None = None
        """Owner of the unread answer, and the timer that aborts it."""
        self._begin()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end()
        self._read_again()
        self.pipeline.clear()
        if self._leaving is not None:
            self._leaving.close()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._due == math.inf:
            self._begin()
        self._beside += len(data)
        super().data_received(data)
        if self._beside > HEAD_BYTES and not self.transport.is_closing():
            self._refuse(431, MessageTooLarge(f"the head of a request must be at most {HEAD_BYTES} bytes"))

    def eof_received(self) -> bool:  # type: ignore[override]
        """Return whether the connection stays open for pending answers. TLS cannot be half-closed."""
        if not self._answering or self.scheme == "https":
            return False
        self._leaving = LeavingClient(self.transport, self._waiting, self._begun)
        return True

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        """Begin a request when it is its turn among the arrivals, unless its client has left by then."""
        self._begun = False
        self._address = network_of(self.client[0]) if self.client else ""
        # After an iteration, in which the loop reads the end of a client that has left.
        self.loop.call_soon(self._arrivals.add, self._address, partial(self._begin_answer, cycle, app))

    def _begin_answer(self, cycle: RequestResponseCycle, app: Any, *, late: bool = False) -> bool:
        """Return whether the request begins. Half-closed connections take turns with the others of their address."""
        if self._leaving is not None and not late:
            begin = partial(self._begin_answer, cycle, app, late=True)
            self._leaving.when_known(partial(self._arrivals.add, f"{self._address} half-closed", begin))
            return False
        self._begun = True
        if self.transport.is_closing():
            return False
        super()._start_asgi_task(cycle, app)
        return True

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._leaving is not None and not self._answering:
            self.transport.close()

    def on_headers_complete(self) -> None:
        if not self.parser.should_upgrade():  # otherwise the parser reads the head again, without the offer
            super().on_headers_complete()
        if len(self.pipeline) > MAX_PIPELINED:
            raise ValueError("too many requests at once")  # the parser reports it as an invalid request

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._head, self._headers, self._room = 0, 0, MAX_PIECES
        if self._due == math.inf:
            self._begin()

    def on_url(self, url: bytes) -> None:
        self._count(len(url))
        if self._head > MAX_URL:
            raise ValueError("the URL is too long")  # the parser reports it as an invalid request
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count(len(name) + len(value))
        self._headers += 1
        if self._headers > MAX_HEADERS:
            raise ValueError("there are too many headers")  # the parser reports it as an invalid request
        if name.lower() != b"cookie":  # nothing reads cookies, but the framework would parse them
            super().on_header(name, value)

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._unread is None:
            share = answered_share(self.cycle.scope) if self.cycle is not None else Share("")
            self._unread = share, self.loop.call_later(self._all_unread.add(share), self.transport.abort)

    def resume_writing(self) -> None:
        self._read_again()
        super().resume_writing()

    def _read_again(self) -> None:
        if self._unread is not None:
            share, timer = self._unread
            timer.cancel()
            self._all_unread.remove(share)
            self._unread = None

    def on_body(self, body: bytes) -> None:
        self._beside = 0
        self._due += len(body) / BYTES_PER_SECOND
        self._room += len(body) / PIECE_BYTES - 1
        if self._room < 0:
            raise ValueError("the pieces are too small")  # the parser reports it as an invalid request
        super().on_body(body)

    def on_message_complete(self) -> None:
        if self.parser.should_upgrade():
            return
        self._beside = 0
        self._end()
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        """Answer invalid bytes with an error in OpenAI's format."""
        if self._headers > MAX_HEADERS:
            self._refuse(431, MessageTooLarge(f"a request may have {MAX_HEADERS} headers"))
        elif self._head > HEAD_BYTES:
            self._refuse(431, MessageTooLarge(f"the head of a request must be at most {HEAD_BYTES} bytes"))
        elif not self._headers and self._head > MAX_URL:
            self._refuse(414, MessageTooLarge(f"a URL must be at most {MAX_URL} bytes"))
        elif len(self.pipeline) > MAX_PIPELINED:
            self._refuse(429, QueueFull(f"a connection may have {MAX_PIPELINED} requests waiting"))
        elif self._room < 0:
            self._refuse(
                400, FieldInvalid(f"a body may have {MAX_PIECES} pieces, and one more for {PIECE_BYTES} bytes")
            )
        else:
            self._refuse(400, FieldInvalid("the bytes are no HTTP request"))

    def _count(self, size: int) -> None:
        self._head += size
        if self._head > HEAD_BYTES:
            raise ValueError("the head is too large")  # the parser reports it as an invalid request

    def _begin(self) -> None:
        self._due = self.loop.time() + ARRIVAL_SECONDS
        self._timer = self._timer or self.loop.call_at(self._due, self._check)

    def _end(self) -> None:
        self._due = math.inf
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _check(self) -> None:
        """Close the connection if the request is late; a request that waits for an earlier answer is not late."""
        self._timer = None
        if self.transport.is_closing():
            return
        late = self.loop.time() - self._due
        if self.flow.read_paused or self._answering:
            self._due = self.loop.time() + ARRIVAL_SECONDS
        elif late > _BUSY:
            self._due = self.loop.time() + late
        if self._due <= self.loop.time():
            self._refuse(408, DeadlineExceeded("the request did not arrive in time"))
        else:
            self._timer = self.loop.call_at(self._due, self._check)

    @property
    def _answering(self) -> bool:
        return self.cycle is not None and not self.cycle.more_body and not self.cycle.response_complete

    def _waiting(self) -> bool:
        """Whether the answer has not begun and the client accepts interim answers."""
        waits = self._answering and not self.cycle.response_started and not self.pipeline
        return waits and self.cycle.scope["http_version"] != "1.0"

    def _refuse(self, status: int, error: SpecdecError) -> None:
        """Close the connection, with an error answer if no answer has begun."""
        if self.cycle is None or self.cycle.response_complete or not self.cycle.response_started:
            body = error_body(error).model_dump_json().encode()
            head = b"content-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n" % len(body)
            self.transport.write(STATUS_LINE[status] + head + body)
        self.transport.close()


class ParsedConnection(Protocol):
    """State of the connection that the parser reads."""

    url: bytes
    headers: list[tuple[bytes, bytes]]
    """Headers of the arriving request, with lower-case names."""


class SteadyParser:
    """httptools' request parser that ignores upgrade offers: it parses the head again without the offer."""

    def __init__(self, connection: ParsedConnection) -> None:
        self._connection = connection
        self._parser = self._new()

    def feed_data(self, data: bytes) -> None:
        """Parse more bytes. A head that offers an upgrade causes its callbacks twice, up to `on_headers_complete`.

        Raises:
            HttpParserError: the bytes are not HTTP.
        """
        while True:
            try:
                self._parser.feed_data(data)
                return
            except httptools.HttpParserUpgrade as offer:
                data = data[offer.args[0] :]
                method, version = self._parser.get_method(), self._parser.get_http_version()
                if method == b"CONNECT":
                    raise httptools.HttpParserInvalidMethodError("this is no proxy") from offer
                self._parser = self._new()
                self._parser.feed_data(self._head(method, version))

    def should_upgrade(self) -> bool:
        """Whether the last head offers an upgrade and will be parsed again."""
        return bool(self._parser.should_upgrade())

    def __getattr__(self, name: str) -> Any:
        return getattr(self._parser, name)

    def _new(self) -> Any:
        parser = httptools.HttpRequestParser(self._connection)
        parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn has it
        return parser

    def _head(self, method: bytes, version: str) -> bytes:
        kept = [header for header in self._connection.headers if header[0] not in _OFFERED]
        lines = [method + b" " + self._connection.url + b" HTTP/" + version.encode()]
        lines += [name + b": " + (_without_offer(value) if name == b"connection" else value) for name, value in kept]
        return b"\r\n".join([*lines, b"", b""])


def _without_offer(connection: bytes) -> bytes:
    """Return a `Connection` header without the tokens of the offer."""
    tokens = [token.strip() for token in connection.split(b",")]
    return b", ".join(token for token in tokens if token.lower() not in _OFFERED)
