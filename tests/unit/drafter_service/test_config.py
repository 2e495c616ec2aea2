"""Settings that contradict one another are refused by name."""

import pytest

from drafter_service.config import DrafterSettings
from specdec.errors import ConfigError


@pytest.mark.parametrize("given", [{"kind": "head"}, {"head": "folder"}, {"kind": "hybrid", "head": "folder"}])
def test_kind_head_alone_has_a_head(given: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match="head: kind `head` needs the folder of a head, and no other kind has one"):
        DrafterSettings.load(None, {"model": {"path": "m"}, **given})
