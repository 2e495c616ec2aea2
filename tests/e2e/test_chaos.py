"""After any kill, stop or cut, every client receives the tokens of an undisturbed run, each token once.

`make chaos` does the same for minutes. Two controls disable a protection, and the same checker must find the errors.
"""

import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from specdec.cli.local import plan
from tests.chaos.cluster import Setup
from tests.chaos.faults import Fault, Kind, schedule
from tests.chaos.report import Report
from tests.chaos.run import Load, chaos
from tests.support.tiny_models import make_tiny_model

SEED = 20


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Return a target and a drafter that is often right."""
    folder = tmp_path_factory.mktemp("pair")
    target = make_tiny_model(folder / "target", "llama", seed=0, context=512)
    return target, make_tiny_model(folder / "drafter", "llama", seed=0, context=512, noise=0.02)


@pytest.fixture
def folder() -> Iterator[Path]:
    """Yield a folder whose path is short enough for a socket file."""
    made = Path(tempfile.mkdtemp(prefix="specdec-chaos-"))
    yield made
    shutil.rmtree(made)


async def survived(setup: Setup, faults: Sequence[Fault], folder: Path) -> Report:
    """Run with a few clients. Check that faults were injected and tokens received."""
    report = await chaos(setup, Load(clients=4, scenarios=4, tokens=150), faults, SEED, folder, lambda _: None)
    assert report.injected
    assert report.tokens
    return report


async def test_no_token_is_lost_repeated_or_changed_whatever_is_killed(pair: tuple[Path, Path], folder: Path) -> None:
    report = await survived(Setup(*pair), list(schedule(SEED, seconds=18, every=2)), folder)
    killed = {each.fault.role for each in report.injected if each.fault.kind is Kind.KILL}
    assert killed == {"gateway", "verifier", "drafter", "redis"}
    assert not report.findings, "\n".join(report.lines())


async def test_control_a_store_without_a_disk_is_found_to_lose_tokens(pair: tuple[Path, Path], folder: Path) -> None:
    faults = list(schedule(SEED, seconds=6, every=3, kinds=[Kind.KILL], roles=["redis"]))
    report = await survived(Setup(*pair, replicas=1, durable=False), faults, folder)
    assert report.findings.lost


async def test_control_a_store_without_fences_is_found_to_repeat_tokens(pair: tuple[Path, Path], folder: Path) -> None:
    faults = list(schedule(SEED, seconds=6, every=1, kinds=[Kind.CUT], roles=["redis"]))
    modules = {**plan.MODULES, "gateway": "tests.chaos.unfenced_gateway"}
    report = await survived(Setup(*pair, replicas=1, modules=modules), faults, folder)
    assert report.findings.duplicated
