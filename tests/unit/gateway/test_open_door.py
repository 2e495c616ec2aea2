"""A gateway with a public address reports at start that it serves everyone or that keys travel in plaintext."""

from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from gateway.app import warn_of_open_door
from gateway.config import GatewaySettings, TokenizerSettings
from specdec.serving.addresses import is_loopback

KEYS = {"api_keys": Path("keys")}
TLS = {"public_tls": {"certificate": Path("c"), "key": Path("k")}}
OUT = {"http": "0.0.0.0:8000"}


@pytest.mark.parametrize(
    ("settings", "events"),
    [
        ({}, []),
        (OUT, ["open_to_everybody"]),
        ({"address": "[::]:50051"}, ["open_to_everybody"]),
        (OUT | KEYS, ["keys_in_plaintext"]),
        (OUT | KEYS | TLS, []),
        (OUT | TLS, ["open_to_everybody"]),
        (KEYS, []),
    ],
)
def test_who_is_warned(settings: dict[str, Any], events: list[str]) -> None:
    with capture_logs() as logs:
        warn_of_open_door(GatewaySettings(model=TokenizerSettings(path=Path("m")), **settings))
    assert [each["event"] for each in logs] == events
    assert all(each["log_level"] == "warning" and each["remedy"] for each in logs)


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("127.0.0.1:1", True),
        ("127.8.8.8:1", True),
        ("[::1]:1", True),
        ("localhost:1", True),
        ("0.0.0.0:1", False),
        ("[::]:1", False),
        ("10.0.0.1:1", False),
        ("gateway.test:1", False),
    ],
)
def test_only_this_machine_reaches_loopback(address: str, expected: bool) -> None:
    assert is_loopback(address) is expected
