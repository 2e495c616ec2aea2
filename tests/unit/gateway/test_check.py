"""The gateway's checks of access and of the certificate that it serves."""

import json
from pathlib import Path
from typing import Any

import pytest

from gateway.check import check
from gateway.config import GatewaySettings, TokenizerSettings
from tests.integration.gateway.key_files import line, write
from tests.integration.serving.certificates import Authority


async def found(tmp_path: Path, name: str, **settings: Any) -> tuple[str, str]:
    """Return the status and the detail of one of the checks."""
    lines: list[str] = []
    values = {"verifiers": ("127.0.0.1:1",), "redis_url": f"unix://{tmp_path}/none", "http": "127.0.0.1:0"}
    values |= {"address": "127.0.0.1:0"} | settings
    await check(GatewaySettings(model=TokenizerSettings(path=tmp_path), **values), lines.append)
    (shown,) = [each for each in map(json.loads, lines) if each["name"] == name]
    return shown["status"], shown["detail"]


async def test_keys_are_counted_and_a_wrong_line_is_named(tmp_path: Path) -> None:
    path = write(tmp_path, line("a", "acme"), line("b", "acme"), line("c", "other"))
    path.chmod(0o600)
    assert await found(tmp_path, "api keys", api_keys=path) == ("ok", f"3 keys of 2 tenants in {path}")
    path.chmod(0o644)
    assert (await found(tmp_path, "api keys", api_keys=path))[0] == "warn"
    write(tmp_path, line("a", "acme"), "acme: b")
    status, detail = await found(tmp_path, "api keys", api_keys=path)
    assert (status, "line 2" in detail) == ("fail", True)


@pytest.mark.parametrize(("http", "status"), [("0.0.0.0:0", "warn"), ("localhost:0", "ok"), ("[::1]:0", "ok")])
async def test_a_gateway_that_others_reach_without_keys_is_unwise(tmp_path: Path, http: str, status: str) -> None:
    assert (await found(tmp_path, "api keys", http=http))[0] == status


async def test_the_certificate_for_callers_is_tried(tmp_path: Path) -> None:
    tls, other = Authority().issue(tmp_path / "one"), Authority().issue(tmp_path / "other")
    good = {"certificate": tls.certificate, "key": tls.key}
    assert (await found(tmp_path, "public tls", public_tls=good))[0] == "ok"
    assert (await found(tmp_path, "public tls", public_tls=good | {"key": other.key}))[0] == "fail"
    assert (await found(tmp_path, "public tls", public_tls=good | {"key": tmp_path / "none"}))[0] == "fail"
