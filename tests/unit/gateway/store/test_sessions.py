"""The pure parts of the session store."""

import fnmatch
import tomllib
from pathlib import Path

import pytest

from gateway.store import lua
from gateway.store.redis_client import connect
from gateway.store.values import RoundCommit
from specdec.errors import ConfigError


def test_the_keys_of_a_session_share_one_hash_tag() -> None:
    assert {key[key.index("{") + 1 : key.index("}")] for key in lua.keys("abc")} == {"abc"}
    assert len(set(lua.keys("abc"))) == 5


ROOT = Path(lua.__file__).parents[2]


@pytest.mark.parametrize("file", [*ROOT.rglob("gateway/store/scripts/**/*.lua")], ids=lambda file: str(file.stem))
def test_every_script_is_packaged_and_finds_what_it_uses(file: Path) -> None:
    assert lua.script(str(file.relative_to(ROOT / "gateway/store/scripts").with_suffix(""))).endswith(file.read_text())
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    patterns = settings["tool"]["setuptools"]["package-data"]["*"]
    name = file.relative_to(ROOT / "gateway/store").as_posix()
    assert any(fnmatch.fnmatch(name, pattern) and name.count("/") == pattern.count("/") for pattern in patterns)


def test_a_commit_without_tokens_and_without_a_finish_is_a_mistake() -> None:
    with pytest.raises(ValueError, match="tokens or a finish"):
        RoundCommit("s", 1, 0, [])
    assert RoundCommit("s", 1, 0, [], finish="stop").finish == "stop"


@pytest.mark.parametrize("url", ["", "http://secret@host", "redis://:secret@host:port/0?db=x"])
def test_a_wrong_url_is_one_line_that_does_not_repeat_the_password(url: str) -> None:
    with pytest.raises(ConfigError) as caught:
        connect(url)
    assert "secret" not in caught.value.message
    assert "\n" not in caught.value.message
