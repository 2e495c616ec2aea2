"""The delaying proxy: half a round trip late each way, in order, with many pieces in transit."""

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest

from benchmarks.systems.delay import DelayingProxy

_ROUND_TRIP = 0.2


@contextmanager
def _echo() -> Iterator[str]:
    """Echo the bytes of one client."""

    def serve() -> None:
        client, _ = listener.accept()
        with client:
            while data := client.recv(65_536):
                client.sendall(data)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"127.0.0.1:{listener.getsockname()[1]}"
        thread.join(30)


def _dial(proxy: DelayingProxy) -> socket.socket:
    host, port = proxy.address.split(":")
    return socket.create_connection((host, int(port)), timeout=30)


def _receive(client: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        data += client.recv(65_536)
    return data


def test_an_answer_comes_a_round_trip_later_and_not_before() -> None:
    with _echo() as server, DelayingProxy(server) as proxy, _dial(proxy) as client:
        proxy.round_trip = _ROUND_TRIP
        started = time.monotonic()
        client.sendall(b"ping")
        assert _receive(client, 4) == b"ping"
        assert time.monotonic() - started >= _ROUND_TRIP - 0.001


def test_pieces_are_under_way_together_and_arrive_in_order() -> None:
    with _echo() as server, DelayingProxy(server) as proxy, _dial(proxy) as client:
        proxy.round_trip = _ROUND_TRIP
        sent = b"".join(number.to_bytes(4, "little") for number in range(50))
        started = time.monotonic()
        for start in range(0, len(sent), 4):
            client.sendall(sent[start : start + 4])
            time.sleep(0.002)
        assert _receive(client, len(sent)) == sent
        assert time.monotonic() - started < 25 * _ROUND_TRIP  # sequentially, they would take twice that


def test_a_server_that_is_not_there_ends_the_connection() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
    with DelayingProxy(address) as proxy, _dial(proxy) as client, suppress(ConnectionResetError):
        assert client.recv(1) == b""


@pytest.mark.parametrize("size", [1 << 20])
def test_more_than_a_connection_holds_passes(size: int) -> None:
    with _echo() as server, DelayingProxy(server) as proxy, _dial(proxy) as client:
        proxy.round_trip = 0.01
        data = bytes(range(256)) * (size // 256)
        sender = threading.Thread(target=client.sendall, args=(data,))
        sender.start()
        assert _receive(client, size) == data
        sender.join(30)
