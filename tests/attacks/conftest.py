"""The gateway under attack, one for each module. After all attacks, its log contains no prompt or key of theirs."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.attacks.attacked_gateway import Target, attacked_gateway
from tests.attacks.attacker import SECRETS


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def target(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Target]:
    async with attacked_gateway(tmp_path_factory.mktemp("front-door")) as made:
        yield made
        leaked = [line for line in made.log for secret in SECRETS if secret in line]
        assert not leaked, leaked[:3]
