"""Choice of the Valkey or Redis server, and its persistence arguments."""

import stat
from pathlib import Path

import pytest

from specdec.cli.local import valkey
from specdec.cli.local.valkey import Binary
from specdec.errors import ConfigError


@pytest.fixture
def versions(monkeypatch: pytest.MonkeyPatch) -> dict[str, str | None]:
    known: dict[str, str | None] = {}
    monkeypatch.setattr(valkey, "version_of", lambda path: known.get(str(path)))
    monkeypatch.setattr(
        valkey, "bundled", lambda: [Path("/bundle/valkey-server")] if "/bundle/valkey-server" in known else []
    )
    return known


def test_a_server_on_path_comes_before_the_bundled_one(versions: dict[str, str | None]) -> None:
    versions |= {"/bin/redis-server": "7.0.15", "/bundle/valkey-server": "9.1.2"}
    found = valkey.resolve({"redis-server": "/bin/redis-server"}.get)
    assert found == Binary(Path("/bin/redis-server"), "7.0.15", "PATH")


def test_valkey_comes_before_redis(versions: dict[str, str | None]) -> None:
    versions |= {"/bin/redis-server": "7.0.15", "/bin/valkey-server": "8.0.0"}
    assert valkey.resolve(lambda name: f"/bin/{name}").path.name == "valkey-server"


@pytest.mark.parametrize("old", ["6.2.19", "5.0.7", None])
def test_a_server_that_is_too_old_or_does_not_run_is_passed_over(
    versions: dict[str, str | None], old: str | None
) -> None:
    versions |= {"/bin/redis-server": old, "/bundle/valkey-server": "9.1.2"}
    assert valkey.resolve({"redis-server": "/bin/redis-server"}.get).origin == "bundled"


@pytest.mark.parametrize("version", ["6.2.20", "7.0.0", "10.0.0"])
def test_new_enough_is_new_enough(versions: dict[str, str | None], version: str) -> None:
    versions["/bin/redis-server"] = version
    assert valkey.resolve({"redis-server": "/bin/redis-server"}.get).version == version


def test_without_any_server_the_error_says_what_to_do(versions: dict[str, str | None]) -> None:
    versions["/bin/redis-server"] = "6.2.14"
    with pytest.raises(ConfigError, match=r"6\.2\.14.*--redis-url.*specdec-serve\[embedded\]"):
        valkey.resolve({"redis-server": "/bin/redis-server"}.get)


def test_the_server_keeps_everything_and_only_its_owner_may_ask(tmp_path: Path) -> None:
    folder = tmp_path / "with space"
    folder.mkdir()
    embedded = valkey.embed(Binary(Path("/bin/valkey-server"), "9.1.2", "PATH"), folder)
    config = folder / "valkey.conf"
    lines = config.read_text().splitlines()
    assert {"appendonly yes", "appendfsync always", "maxmemory-policy noeviction", "daemonize no"} <= set(lines)
    assert stat.S_IMODE(config.stat().st_mode) == 0o600
    assert embedded.argv == ("/bin/valkey-server", str(config))
    password = next(line.split()[1] for line in lines if line.startswith("requirepass"))
    assert len(password) >= 32
    assert password in embedded.url


def test_sessions_are_kept_where_they_are_to_be_kept(tmp_path: Path) -> None:
    valkey.embed(Binary(Path("/b"), "9.1.2", "PATH"), tmp_path, Path("/kept"))
    assert 'dir "/kept"\n' in (tmp_path / "valkey.conf").read_text()


def test_keys_and_values_are_bounded_evicted_and_never_written(tmp_path: Path) -> None:
    sessions = valkey.embed(Binary(Path("/b"), "9.1.2", "PATH"), tmp_path)
    kv = valkey.embed_kv(Binary(Path("/b"), "9.1.2", "PATH"), tmp_path, 2**26)
    lines = (tmp_path / "valkey-kv.conf").read_text().splitlines()
    assert {f"maxmemory {2**26}", "maxmemory-policy allkeys-lru", "appendonly no", 'save ""'} <= set(lines)
    assert (sessions.name, kv.name) == ("redis-1", "redis-kv-1")
    assert sessions.url != kv.url


def test_a_short_path_gets_a_socket_file_and_no_port(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(valkey, "_MAX_SOCKET_PATH", 1000)
    embedded = valkey.embed(Binary(Path("/b"), "9.1.2", "PATH"), tmp_path)
    text = (tmp_path / "valkey.conf").read_text()
    assert "port 0\n" in text
    assert "unixsocketperm 600" in text
    assert embedded.url.startswith("unix://:")


def test_a_path_too_long_for_a_socket_gets_loopback(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(valkey, "_MAX_SOCKET_PATH", 10)
    monkeypatch.setattr(valkey.ports, "free", lambda host: 4242)
    embedded = valkey.embed(Binary(Path("/b"), "9.1.2", "PATH"), tmp_path)
    text = (tmp_path / "valkey.conf").read_text()
    assert "bind 127.0.0.1\nport 4242\n" in text
    assert "unixsocket" not in text
    assert embedded.url.endswith("@127.0.0.1:4242")
