"""Callers without keys are distinguished by address, and callers with keys by the tenant of the key."""

import pytest

from gateway.callers.caller import ApiKey, Share, called_from, place_share, tenant_name
from gateway.rpc.door import host_of


@pytest.mark.parametrize(
    ("host", "client"),
    [
        ("192.0.2.1", "192.0.2.1"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("2001:db8::1", "2001:db8::"),
        ("2001:db8:0:0:ffff::2", "2001:db8::"),
        ("2001:db8:0:1::1", "2001:db8:0:1::"),
        ("", ""),
        ("unix:", "unix:"),
    ],
)
def test_a_caller_without_a_key_is_its_address_and_its_user(host: str, client: str) -> None:
    called_from(host)
    assert place_share(tenant_name("ann", None)) == Share(client, "user:ann")
    assert place_share(tenant_name("", None)).client == client
    assert place_share(tenant_name("ann", ApiKey("acme", "1"))) == Share("key:acme")


@pytest.mark.parametrize(
    ("peer", "host"),
    [
        ("ipv4:192.0.2.1:1234", "192.0.2.1"),
        ("ipv6:%5B2001:db8::1%5D:1234", "2001:db8::1"),
        ("unix:/tmp/a", "unix:/tmp/a"),
    ],
)
def test_the_host_of_a_peer_is_read(peer: str, host: str) -> None:
    assert host_of(peer) == host
