"""A process that stalls past its default lease and resumes writes nothing and shows nothing wrong."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.config import GatewaySettings
from tests.chaos.cluster import Setup
from tests.chaos.faults import Fault, Kind
from tests.chaos.run import Load, chaos
from tests.support.tiny_models import make_tiny_model

pytestmark = pytest.mark.e2e

LEASE: float = GatewaySettings.model_fields["lease"].default
ZOMBIES = ("gateway", "verifier", "drafter")
"""Each process is stopped for 1.8 leases and then resumes with outdated ownership."""


@pytest.fixture
def folder() -> Iterator[Path]:
    """Yield a folder whose path is short enough for a socket file."""
    made = Path(tempfile.mkdtemp(prefix="specdec-chaos-"))
    yield made
    shutil.rmtree(made)


@pytest.mark.timeout(900)
async def test_no_token_is_lost_repeated_or_changed_by_who_wakes_up_late(tmp_path: Path, folder: Path) -> None:
    target = make_tiny_model(tmp_path / "target", "llama", seed=0, context=512)
    drafter = make_tiny_model(tmp_path / "drafter", "llama", seed=0, context=512, noise=0.02)
    faults = [Fault(2.0 + number, Kind.STOP, role, number) for number, role in enumerate(ZOMBIES)]
    load = Load(clients=4, scenarios=4, tokens=150)
    report = await chaos(Setup(target, drafter, lease=LEASE), load, faults, 20, folder, lambda _: None)
    assert [each.fault.role for each in report.injected] == list(ZOMBIES)
    assert report.tokens
    assert not report.findings, "\n".join(report.lines())
