"""No caller slows another: during each kind of attack, a bystander waits at most a second longer than without it."""

import pytest

from tests.attacks.attacked_gateway import Target
from tests.attacks.kinds import KINDS
from tests.attacks.trial import control, trial

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="module")]


@pytest.mark.parametrize("kind", KINDS)
async def test_a_bystander_waits_a_second_more_at_most(target: Target, kind: str) -> None:
    quiet = await control(target, 2.0)
    seen = await trial(target, kind, 1)
    assert seen.p95 <= quiet.p95 + 1.0, (quiet, seen)
    assert not [status for status in seen.statuses if status >= 500]
