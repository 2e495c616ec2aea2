"""The verifier and the process of its target end together, whichever is lost first, and share the processors."""

import asyncio
import os
import signal
from pathlib import Path

import pytest

from tests.support.gateway_fakes import until
from tests.support.tiny_models import make_tiny_model
from tests.vllm.server import HAS_VLLM, vllm_verifier

pytestmark = [HAS_VLLM, pytest.mark.integration, pytest.mark.timeout(1800)]

HEAD_DIM = 32
"""Smallest head dimension that vLLM supports on a CPU."""


def child_of(pid: int) -> int:
    """Return the only child of a process."""
    (child,) = (
        int(line) for task in Path(f"/proc/{pid}/task").iterdir() for line in (task / "children").read_text().split()
    )
    return child


def runs(pid: int) -> bool:
    """Whether a process exists and is not a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def processors_of(pid: int) -> set[int]:
    """Return the processors on which any thread of a process may run."""
    return {each for task in Path(f"/proc/{pid}/task").iterdir() for each in os.sched_getaffinity(int(task.name))}


async def test_neither_outlives_the_other(tmp_path: Path) -> None:
    target = make_tiny_model(tmp_path / "target", "llama", seed=0, context=512, head_dim=HEAD_DIM)
    async with vllm_verifier(target, tmp_path) as verifier:
        child = child_of(verifier.process.pid)
        verifier.kill()
        await until(lambda: not runs(child))
    async with vllm_verifier(target, tmp_path) as verifier:
        os.kill(child_of(verifier.process.pid), signal.SIGKILL)
        assert await asyncio.to_thread(verifier.process.wait, 60) != 0


async def test_it_ends_well_when_it_is_told_to(tmp_path: Path) -> None:
    target = make_tiny_model(tmp_path / "target", "llama", seed=0, context=512, head_dim=HEAD_DIM)
    async with vllm_verifier(target, tmp_path) as verifier:
        child = child_of(verifier.process.pid)
        os.killpg(verifier.process.pid, signal.SIGTERM)  # the signal of a terminal reaches both
        assert await asyncio.to_thread(verifier.process.wait, 60) == 0
        await until(lambda: not runs(child))


async def test_the_target_has_a_processor_that_the_verifier_leaves_it(tmp_path: Path) -> None:
    target = make_tiny_model(tmp_path / "target", "llama", seed=0, context=512, head_dim=HEAD_DIM)
    own = os.sched_getaffinity(0)
    left = own - {min(own)} if len(own) > 1 else own
    async with vllm_verifier(target, tmp_path) as verifier:
        assert processors_of(verifier.process.pid) == left
        assert own == processors_of(child_of(verifier.process.pid))
