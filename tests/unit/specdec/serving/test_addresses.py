"""Addresses are checked, split and joined by one rule, and a wildcard of IPv6 listens for both families."""

import socket

import pytest

from specdec.serving.addresses import (
    check_address,
    join_address,
    listen,
    parse_address,
    split_address,
    without_mapping,
)
from tests.support.addresses import NEEDS_IPV6


@pytest.mark.parametrize(
    ("address", "host", "port"),
    [
        ("127.0.0.1:80", "127.0.0.1", 80),
        ("[::1]:80", "::1", 80),
        ("[::]:0", "::", 0),
        ("[fd00::1]:50053", "fd00::1", 50053),
        ("[fe80::1%eth0]:1", "fe80::1%eth0", 1),
        ("gateway.test:65535", "gateway.test", 65535),
    ],
)
def test_an_address_is_split_and_joined_again(address: str, host: str, port: int) -> None:
    assert split_address(check_address(address)) == (host, port)
    assert join_address(host, port) == address


@pytest.mark.parametrize(
    "address", ["", "host", ":80", "host:", "host:x", "host:65536", "[]:80", "a/b:1", "[127.0.0.1]:80", "[host]:80"]
)
def test_what_is_no_address_is_refused(address: str) -> None:
    with pytest.raises(ValueError, match=r"must be host:port, got"):
        check_address(address)


@pytest.mark.parametrize("address", ["::1:8000", "::", "[::1]", "[::1:8000", "fd00::1]:80", "[[::1]]:80", "[::1]:x"])
def test_a_wrong_ipv6_address_is_refused_with_the_form(address: str) -> None:
    with pytest.raises(ValueError, match=r"with an IPv6 host in brackets as in \[::1\]:8000, got"):
        check_address(address)


def test_a_port_alone_is_on_loopback() -> None:
    assert parse_address("8000") == "127.0.0.1:8000"


@pytest.mark.parametrize(
    ("host", "named"),
    [
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("::ffff:1", "::ffff:1"),
        ("fd00::1", "fd00::1"),
        ("192.0.2.1", "192.0.2.1"),
        ("", ""),
    ],
)
def test_a_client_is_known_by_its_ipv4_address(host: str, named: str) -> None:
    assert without_mapping(host) == named


def test_the_bound_address_has_the_port() -> None:
    listener, bound = listen("127.0.0.1:0")
    with listener:
        assert split_address(bound) == listener.getsockname()


def test_a_taken_address_is_told_without_repeating_it() -> None:
    listener, bound = listen("127.0.0.1:0")
    with listener, pytest.raises(OSError, match="Address already in use") as caught:
        listen(bound)
    assert caught.value.strerror == "Address already in use"


@NEEDS_IPV6
@pytest.mark.parametrize("any_host", ["[::]", "[0::0]"])
def test_the_wildcard_of_ipv6_accepts_ipv4_too(any_host: str) -> None:
    listener, bound = listen(f"{any_host}:0")
    _, port = split_address(bound)
    with listener:
        for host in ("127.0.0.1", "::1"):
            socket.create_connection((host, port), timeout=60).close()


@NEEDS_IPV6
def test_an_address_of_ipv6_is_bound_as_it_is() -> None:
    listener, bound = listen("[::1]:0")
    with listener:
        assert bound.startswith("[::1]:")
        assert listener.family is socket.AF_INET6


def test_without_ipv6_the_wildcard_is_that_of_ipv4(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "has_dualstack_ipv6", lambda: False)
    listener, bound = listen("[::]:0")
    with listener:
        assert bound == f"0.0.0.0:{listener.getsockname()[1]}"
        socket.create_connection(split_address(bound), timeout=60).close()


def test_a_name_without_ipv4_addresses_is_bound_by_ipv6(monkeypatch: pytest.MonkeyPatch) -> None:
    found = [(socket.AF_INET6, socket.SOCK_STREAM, 6, "", ("::1", 0, 0, 0))]
    asked: list[tuple[object, socket.AddressFamily]] = []

    def create(address: object, *, family: socket.AddressFamily, **_: object) -> socket.socket:
        asked.append((address, family))
        return socket.socket()

    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
    monkeypatch.setattr(socket, "create_server", create)
    listener, _ = listen("pod.test:80")
    listener.close()
    assert asked == [(("pod.test", 80), socket.AF_INET6)]
