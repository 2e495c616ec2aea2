"""The pure parts of the session store."""

import pytest

from gateway.store import lua
from gateway.store.redis_client import connect
from gateway.store.values import RoundCommit
from specdec.errors import ConfigError


def test_the_keys_of_a_session_share_one_hash_tag() -> None:
    assert {key[key.index("{") + 1 : key.index("}")] for key in lua.keys("abc")} == {"abc"}
    assert len(set(lua.keys("abc"))) == 5


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
