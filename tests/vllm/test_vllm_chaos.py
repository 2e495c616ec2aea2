"""Verifiers on vLLM are killed while they serve: each client receives each of its tokens once."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos.cluster import Setup
from tests.chaos.faults import Fault, InTurn, Kind
from tests.chaos.run import Load, chaos
from tests.support.tiny_models import make_tiny_model
from tests.vllm.moved_sessions import BLOCK
from tests.vllm.server import HAS_VLLM, PYTHON

pytestmark = [HAS_VLLM, pytest.mark.integration, pytest.mark.timeout(1800)]

FAULTS = [Fault(1.0, Kind.KILL, "verifier", 0), *(Fault(6.0 + 5 * n, Kind.KILL, "verifier", 1) for n in range(12))]
"""Kills of the native verifier first, then of the one on vLLM, which has index 1 while both run."""
IN_TURN = InTurn(tokens=3000, spacing=800, kills=2)
PROMPT = 3 * BLOCK + 20
"""Tokens of a prompt, with three whole blocks of vLLM."""
HEAD_DIM = 32
"""Smallest head dimension that vLLM supports on a CPU."""
COSTLY = {"layers": 2, "hidden_size": 256, "intermediate_size": 8192, "num_key_value_heads": 1}
"""A target whose 384 tokens take 10 GFLOP to compute and at most 200 KB of KV, so restoring is faster anywhere."""


@pytest.fixture
def folder() -> Iterator[Path]:
    """Yield a folder whose path is short enough for a socket file."""
    made = Path(tempfile.mkdtemp(prefix="specdec-chaos-"))
    yield made
    shutil.rmtree(made)


async def test_sessions_move_between_backends_that_are_killed(folder: Path) -> None:
    target = make_tiny_model(folder / "target", "llama", seed=0, context=512, head_dim=HEAD_DIM)
    drafter = make_tiny_model(folder / "drafter", "llama", seed=0, context=512, noise=0.02, head_dim=HEAD_DIM)
    setup, load = Setup(target, drafter, vllm_python=PYTHON), Load(clients=4, scenarios=4, tokens=150)
    report = await chaos(setup, load, FAULTS, 20, folder, lambda _: None)
    killed = {each.fault.index for each in report.injected}
    assert killed == {0, 1}
    assert report.tokens
    assert not report.findings, "\n".join(report.lines())


async def test_most_prompts_that_move_between_verifiers_are_restored(folder: Path) -> None:
    target = make_tiny_model(folder / "target", "llama", seed=0, context=1024, head_dim=HEAD_DIM, **COSTLY)
    drafter = make_tiny_model(folder / "drafter", "llama", seed=0, context=1024, head_dim=HEAD_DIM)
    setup = Setup(target, drafter, vllm_python=PYTHON, vllm_verifiers=2, kv_bytes=2**28)
    load = Load(clients=4, scenarios=2, tokens=400, prompt=PROMPT, salted=True)
    report = await chaos(setup, load, IN_TURN, 21, folder, lambda _: None)
    assert {each.victim for each in report.injected} == {"verifier-1", "verifier-2"}
    assert not report.findings, "\n".join(report.lines())
    assert report.moves.moved
    assert 2 * report.moves.restored >= report.moves.moved, report.moves
