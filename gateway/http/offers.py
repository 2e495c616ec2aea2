"""Offers of another protocol: a request that offers an upgrade is read and answered as HTTP/1.1, body and all.

RFC 9110, section 7.8: a server may ignore an offer. Every `HttpClient` of Java makes one on plain HTTP, for h2c.
"""

from typing import Any, Protocol

import httptools

_OFFERED = (b"upgrade", b"http2-settings")


class ParsedConnection(Protocol):
    """What a parser reads of the connection whose callbacks it calls."""

    url: bytes
    headers: list[tuple[bytes, bytes]]
    """Headers of the request that arrives, with names in lower case."""


class SteadyParser:
    """httptools' parser of requests, which does not stop at an offer: it reads the request's head again without it."""

    def __init__(self, connection: ParsedConnection) -> None:
        self._connection = connection
        self._parser = self._new()

    def feed_data(self, data: bytes) -> None:
        """Read more bytes; the callbacks of a head that offers an upgrade come twice, until `on_headers_complete`.

        Raises:
            HttpParserError: the bytes are no HTTP.
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
        """Whether the head that was read last offers an upgrade, so that it will be read again."""
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
    """A `Connection` header without what belongs to the offer."""
    tokens = [token.strip() for token in connection.split(b",")]
    return b", ".join(token for token in tokens if token.lower() not in _OFFERED)
