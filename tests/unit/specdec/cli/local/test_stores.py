"""Stores used by `specdec up`: given, started, or none."""

from pathlib import Path

import pytest

from specdec.cli.local import launch, stores, valkey
from specdec.cli.local.valkey import Binary
from specdec.cli.settings import UpSettings
from specdec.errors import ConfigError

BINARY = Binary(Path("/bin/valkey-server"), "9.1.2", "PATH")


@pytest.fixture(autouse=True)
def program(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(valkey, "resolve", lambda: BINARY)
    monkeypatch.setattr(launch, "check_given_store", lambda url, option="": None)


@pytest.mark.parametrize(
    ("settings", "started"),
    [
        (UpSettings(redis_url=""), ["redis", "redis-kv"]),
        (UpSettings(redis_url="", kv=False), ["redis"]),
        (UpSettings(redis_url="", kv_redis_url="redis://kv"), ["redis"]),
        (UpSettings(redis_url="redis://sessions"), ["redis-kv"]),
        (UpSettings(redis_url="redis://sessions", kv=False), []),
    ],
)
def test_what_is_not_given_or_switched_off_is_started(settings: UpSettings, started: list[str], tmp_path: Path) -> None:
    used = stores.configure(stores.choose(settings), settings, tmp_path)
    assert [each.role for each in used.embedded] == started
    urls = {each.role: each.url for each in used.embedded}
    assert used.sessions == urls.get("redis", settings.redis_url)
    assert used.kv == urls.get("redis-kv", settings.kv_redis_url)


def test_without_a_server_program_a_given_session_store_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    def none() -> Binary:
        raise ConfigError("no Redis or Valkey")

    monkeypatch.setattr(valkey, "resolve", none)
    chosen = stores.choose(UpSettings(redis_url="redis://sessions"))
    assert (chosen.starts_kv, chosen.lacking) == (False, "no Redis or Valkey")
    with pytest.raises(ConfigError, match="no Redis or Valkey"):
        stores.choose(UpSettings(redis_url=""))


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (UpSettings(data=Path("kept"), redis_url="redis://sessions"), "--data is for"),
        (UpSettings(kv=False, kv_redis_url="redis://kv"), "--no-kv and --kv-redis-url"),
    ],
)
def test_contradictions_are_refused(settings: UpSettings, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        stores.choose(settings)
