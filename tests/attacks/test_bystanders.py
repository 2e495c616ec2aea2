"""No caller slows another: during each kind of attack, a bystander waits at most a second longer than without it."""

from pathlib import Path

import pytest

from tests.attacks.attacked_gateway import Target
from tests.attacks.kinds import KINDS, SERVED_KINDS
from tests.attacks.trial import FROZEN_STORE, control, most_more, target_of, trial

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="module")]


async def check(target: Target, kind: str) -> None:
    quiet = await control(target, 2.0)
    seen = await trial(target, kind, 1)
    assert seen.p95 <= quiet.p95 + most_more(kind), (quiet, seen)
    assert not [status for status in seen.statuses if status >= 500], seen.statuses


@pytest.mark.parametrize("kind", [*KINDS, FROZEN_STORE])
async def test_a_bystander_waits_a_second_more_at_most(target: Target, kind: str) -> None:
    await check(target, kind)


@pytest.mark.parametrize("kind", SERVED_KINDS)
async def test_nor_does_one_beside_a_real_model_wait_longer(kind: str, tmp_path: Path) -> None:
    async with target_of(tmp_path, kind) as served:
        await check(served, kind)
