"""Flags override the environment, which overrides the file, which overrides the defaults."""

from inspect import signature
from pathlib import Path

import pytest

from specdec.cli.app import up
from specdec.cli.settings import UpSettings
from specdec.errors import ConfigError


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "up.yaml"
    path.write_text("http: 127.0.0.1:1\ngrpc: 127.0.0.1:1\nverifier_address: 127.0.0.1:1\n")
    return path


def test_flag_environment_file_default(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPECDEC_UP_HTTP", "127.0.0.1:2")
    monkeypatch.setenv("SPECDEC_UP_GRPC", "127.0.0.1:2")
    settings = UpSettings.load(config, {"http": "127.0.0.1:3"})
    assert (settings.http, settings.grpc) == ("127.0.0.1:3", "127.0.0.1:2")
    assert (settings.verifier_address, settings.drafter_address) == ("127.0.0.1:1", "127.0.0.1:50052")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("gateways: many", "gateways"),
        ("verifiers: 0", "verifiers"),
        ("drafter_adress: 127.0.0.1:1", "did you mean 'drafter_address'"),
        ("a: [", "not valid YAML"),
        ("http: [8000]", "http"),
    ],
)
def test_a_mistake_in_the_file_is_one_line_that_names_it(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "up.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=said) as caught:
        UpSettings.load(path)
    assert str(path) in caught.value.message
    assert "\n" not in caught.value.message


def test_the_tier_of_drafters_may_be_empty() -> None:
    assert UpSettings.load(None, {"drafters": 0}).drafters == 0


def test_memory_may_be_said_with_a_unit() -> None:
    assert UpSettings.load(None, {"kv_memory": "64MiB"}).kv_memory == 64 * 2**20
    assert UpSettings.load(None, {"kv_memory": 2**26}).kv_memory == 2**26
    for wrong in ("1MiB", "much"):
        with pytest.raises(ConfigError, match="kv_memory"):
            UpSettings.load(None, {"kv_memory": wrong})


def test_every_setting_but_those_of_logs_is_an_option_without_a_default() -> None:
    options = signature(up).parameters
    assert set(options) == {"config", *UpSettings.model_fields} - {"log"}
    assert all(option.default is None for option in options.values())


def test_the_session_store_is_that_of_redis_url_unless_another_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("REDIS_URL", raising=False)
    assert UpSettings().redis_url == ""
    monkeypatch.setenv("REDIS_URL", "redis://b")
    assert UpSettings().redis_url == "redis://b"
    assert UpSettings(redis_url="redis://a").redis_url == "redis://a"
    assert UpSettings(redis_url="").redis_url == ""
