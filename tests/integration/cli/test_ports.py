"""Address allocation: the requested port exactly, and the others counted up past used ports."""

import socket
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from specdec.cli.local import ports
from specdec.cli.local.ports import Wanted
from specdec.errors import ConfigError
from specdec.serving.addresses import split_address
from tests.support.addresses import NEEDS_IPV6

pytestmark = pytest.mark.integration


@pytest.fixture
def taken() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield int(listener.getsockname()[1])


def free_run(length: int) -> int:
    """Return a port followed by free ones."""
    for base in range(10000, 15000, length):
        try:
            found = ports.allot([Wanted("--x", f"127.0.0.1:{base}", length)])[0]
        except ConfigError:
            continue
        if found == [f"127.0.0.1:{base + step}" for step in range(length)]:
            return base
    raise AssertionError("no free run of ports")


def test_ports_count_up_from_the_base() -> None:
    base = free_run(3)
    assert ports.allot([Wanted("--http", f"127.0.0.1:{base}", 3)]) == [
        [f"127.0.0.1:{base}", f"127.0.0.1:{base + 1}", f"127.0.0.1:{base + 2}"]
    ]


def test_a_taken_first_port_names_itself_and_its_option(taken: int) -> None:
    with pytest.raises(ConfigError, match=f"127.0.0.1:{taken}: Address already in use.*--grpc"):
        ports.allot([Wanted("--grpc", f"127.0.0.1:{taken}", 1)])


def test_a_taken_first_port_that_need_not_be_exact_is_replaced(taken: int) -> None:
    ((found,),) = ports.allot([Wanted("--x", f"127.0.0.1:{taken}", 1, exact=False)])
    assert found != f"127.0.0.1:{taken}"
    base = free_run(2)
    (run,) = ports.allot([Wanted("--x", f"127.0.0.1:{base}", 2, exact=False)])
    assert run == [f"127.0.0.1:{base}", f"127.0.0.1:{base + 1}"]


def test_a_taken_later_port_is_replaced_by_a_free_one() -> None:
    base = free_run(2)
    with socket.create_server(("127.0.0.1", base + 1)):
        (found,) = ports.allot([Wanted("--http", f"127.0.0.1:{base}", 2)])
    assert found[0] == f"127.0.0.1:{base}"
    assert found[1] not in {f"127.0.0.1:{base}", f"127.0.0.1:{base + 1}"}


def test_counting_up_does_not_take_the_first_port_of_the_next_kind() -> None:
    base = free_run(3)
    first, second = ports.allot([Wanted("--a", f"127.0.0.1:{base}", 2), Wanted("--b", f"127.0.0.1:{base + 1}", 2)])
    assert second[0] == f"127.0.0.1:{base + 1}"
    assert len({*first, *second}) == 4


def test_port_zero_takes_free_ones() -> None:
    (found,) = ports.allot([Wanted("--a", "127.0.0.1:0", 4)])
    assert len(set(found)) == 4
    lowest_of_the_kernel = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    assert all(0 < int(address.rpartition(":")[2]) < lowest_of_the_kernel for address in found)


def test_none_wanted_is_none_checked(taken: int) -> None:
    assert ports.allot([Wanted("--a", f"127.0.0.1:{taken}", 0)]) == [[]]


def test_an_address_of_another_machine_is_refused() -> None:
    with pytest.raises(ConfigError, match="Cannot assign requested address"):
        ports.allot([Wanted("--a", "192.0.2.1:0", 1)])


@NEEDS_IPV6
def test_an_ipv6_address_keeps_its_brackets() -> None:
    (found,) = ports.allot([Wanted("--a", "[::1]:0", 2)])
    assert all(address.startswith("[::1]:") for address in found)
    with pytest.raises(ConfigError, match=r"^\[::1\]:(\d+): Address already in use; .* --b HOST:PORT$"):
        ports.allot([Wanted("--a", found[0], 1), Wanted("--b", found[0], 1)])


def test_without_ipv6_the_processes_are_told_an_ipv4_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("socket.has_dualstack_ipv6", lambda: False)
    (found,) = ports.allot([Wanted("--a", "[::]:0", 2)])
    assert all(address.startswith("0.0.0.0:") for address in found)


def test_two_systems_that_look_at_once_never_meet_on_a_port() -> None:
    base = free_run(2)
    wanted = [Wanted("--http", f"127.0.0.1:{base}", 2)]
    with ports.Reservations() as ours:
        ((first, second),) = ports.allot(wanted, ours)
        with ports.Reservations() as theirs:
            with pytest.raises(ConfigError, match=f"127.0.0.1:{base}: .*--http"):
                ports.allot(wanted, theirs)
            ((other,),) = ports.allot([replace(wanted[0], count=1, exact=False)], theirs)
            assert other not in {first, second}
    assert ports.allot(wanted) == [[first, second]]


@pytest.mark.skipif(sys.platform != "linux", reason="reservations are for Linux")
def test_a_reserved_port_is_free_only_for_a_process_that_listens() -> None:
    with ports.Reservations() as ours:
        ((found,),) = ports.allot([Wanted("--http", "127.0.0.1:0", 1)], ours)
        address = split_address(found)
        with socket.socket() as outgoing, pytest.raises(OSError, match="Address already in use"):
            outgoing.bind(address)
        for _ in range(2):
            with socket.create_server(address) as server, socket.create_connection(address), server.accept()[0]:
                pass
    with socket.socket() as outgoing:
        outgoing.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        outgoing.bind(address)
