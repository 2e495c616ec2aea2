"""`python -m benchmarks.placement`: prefix hit rate of sessions placed by their prompt and by their id, simulated.

The real balancer chooses among verifiers with simulated prefix caches: each holds a number of tokens and evicts the
least recently used blocks.
"""

import argparse
import asyncio
import random
import sys
from collections import OrderedDict, deque
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry

from gateway.metrics import GatewayMetrics
from gateway.verifiers.balancer import VerifierPool
from gateway.verifiers.client import VerifierClient
from gateway.verifiers.placement import prefix_of
from specdec.rules.blocks import BLOCK_TOKENS
from specdec.serving.discovery import Endpoint
from specdec.wire.generation import VerifierInfo

_VOCABULARY = 32_000
_HASH, _FINGERPRINT = "tokenizer", "model"


@dataclass
class _Cache:
    """Prefix cache of one verifier."""

    blocks: int
    """Number of blocks that it holds."""
    held: OrderedDict[bytes, None] = field(default_factory=OrderedDict)
    found: int = 0
    asked: int = 0

    def serve(self, prefix: Sequence[bytes]) -> None:
        """Count the leading blocks that are held, and hold all."""
        self.asked += len(prefix)
        hits = next((place for place, block in enumerate(prefix) if block not in self.held), len(prefix))
        self.found += hits
        for block in reversed(prefix):
            self.held[block] = None
            self.held.move_to_end(block)
        while len(self.held) > self.blocks:
            self.held.popitem(last=False)


class _Verifier(VerifierClient):
    """A verifier that only says that it is ready."""

    def __init__(self, address: str) -> None:
        self.address = address

    async def info(self, timeout: float) -> VerifierInfo:
        return VerifierInfo(
            model="m",
            tokenizer_hash=_HASH,
            vocab_size=_VOCABULARY,
            context_length=4096,
            end_token_ids=(),
            gamma_max=8,
            system_fingerprint=_FINGERPRINT,
        )


@dataclass(frozen=True)
class Load:
    """Sessions that arrive, and where they may go."""

    verifiers: int = 4
    systems: int = 50
    """Number of system prompts."""
    sessions: int = 4000
    running: int = 32
    """Number of sessions at once."""
    tokens: int = 512
    """Length of a system prompt."""
    cached: int = 16_384
    """Number of tokens that a verifier's prefix cache holds."""


async def hit_rate(load: Load, by_prefix: bool, seed: int) -> tuple[float, float]:
    """Return the share of prompt blocks found in a cache, and the highest load of a verifier over the mean load."""
    draw = random.Random(seed)
    pool = VerifierPool(_HASH, GatewayMetrics(CollectorRegistry()))
    endpoints = tuple(Endpoint(f"v{number}:1") for number in range(load.verifiers))
    pool.replace(endpoints, _Verifier)
    await pool.probe()
    caches = {each.address: _Cache(load.cached // BLOCK_TOKENS) for each in endpoints}
    systems = [draw.choices(range(_VOCABULARY), k=load.tokens) for _ in range(load.systems)]
    running: deque[tuple[str, ExitStack]] = deque()
    highest = 0.0
    for number in range(load.sessions):
        tokens = draw.choice(systems) + draw.choices(range(_VOCABULARY), k=draw.randint(16, 64))
        prefix = prefix_of(tokens, _FINGERPRINT, "")
        verifier, _ = pool.verifier_for(f"session-{number}", prefix=prefix if by_prefix else ())
        if by_prefix:
            pool.note(verifier, prefix)
        caches[verifier.address].serve(prefix)
        stack = ExitStack()
        stack.enter_context(pool.serving(verifier))
        running.append((verifier.address, stack))
        if len(running) > load.running:
            running.popleft()[1].close()
        counts = [sum(address == each for address, _ in running) for each in caches]
        if number > load.running:
            highest = max(highest, max(counts) / (sum(counts) / len(counts)))
    found, asked = (sum(getattr(each, name) for each in caches.values()) for name in ("found", "asked"))
    return found / asked, highest


async def _main(load: Load, seed: int) -> None:
    for name, by_prefix in (("by session", False), ("by prefix", True)):
        rate, highest = await hit_rate(load, by_prefix, seed)
        sys.stdout.write(f"{name}: {100 * rate:.1f} % of prompt blocks found, highest load {highest:.2f} of the mean\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    for name, value in vars(Load()).items():
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--seed", type=int, default=0)
    arguments = vars(parser.parse_args())
    seed = arguments.pop("seed")
    asyncio.run(_main(Load(**arguments), seed))
