"""Bytes change in transit on every hop between processes: no token is wrong, and no request is retried forever.

`make corruption` does the same with 10,000 tokens a hop.
"""

import shutil
import tempfile
from contextlib import aclosing
from pathlib import Path

import pytest

from tests.chaos.cluster import Setup
from tests.chaos.corruption import HOPS, corruption
from tests.chaos.run import Load
from tests.support.tiny_models import make_tiny_model

TOKENS = 1000
"""Number of tokens for each hop."""
EVERY = 8000
"""One byte of this many is changed."""


@pytest.mark.timeout(900)
async def test_no_token_is_wrong_whatever_hop_is_spoiled(tmp_path: Path) -> None:
    target = make_tiny_model(tmp_path / "target", "llama", seed=0, context=512)
    drafter = make_tiny_model(tmp_path / "drafter", "llama", seed=0, context=512, noise=0.02)
    load = Load(clients=4, scenarios=4, tokens=150)
    folder = Path(tempfile.mkdtemp(prefix="specdec-chaos-"))  # short enough for a socket file
    try:
        async with aclosing(corruption(Setup(target, drafter), load, list(HOPS), TOKENS, EVERY, 5, folder)) as hops:
            found = [hop async for hop in hops]
    finally:
        shutil.rmtree(folder)
    assert [hop.hop for hop in found] == list(HOPS.values())
    for hop in found:
        assert not hop.faults, str(hop)
        assert hop.flips
        assert hop.tokens >= TOKENS
