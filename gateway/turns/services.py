"""The parts of the gateway that every generation uses, joined once per process."""

import sys
from dataclasses import dataclass, field

from gateway.admission import Admission, Drain, FairQueue, FairThreads
from gateway.callers.key_file import KeyFile
from gateway.config import GatewaySettings
from gateway.metrics import GatewayMetrics
from gateway.models.served import ServedModels
from gateway.store.limits import Limits
from gateway.store.sessions import SessionStore
from gateway.text.grammar_checker import GrammarChecker
from gateway.turns.broadcast import Broadcasts, Leases
from gateway.verifiers.pass_loop import PassLoops

SHORT = 64 * 1024
"""Number of tokens that can be described or read back in about 0.1 s."""
OPENINGS = 32
"""Turns that are opened in the session store at once."""


@dataclass(frozen=True, slots=True)
class Services:
    """Dependencies of a generation."""

    models: ServedModels
    sessions: SessionStore
    drain: Drain
    generations: Admission
    """Admission of generations."""
    calls: Admission
    """Admission of the other calls that use the session store."""
    metrics: GatewayMetrics
    settings: GatewaySettings
    passes: PassLoops
    """Pass loops of this process, one per verifier."""
    leases: Leases
    """The leases of the turns that this process generates."""
    owner: str
    """Unique owner name of this process in the session store."""
    keys: KeyFile | None = None
    """API keys of the callers; None if no key is required."""
    limits: Limits | None = None
    """Rate limits of the API keys; None if no key is required."""
    grammars: GrammarChecker = field(default_factory=GrammarChecker)
    beside: FairThreads = field(default_factory=lambda: FairThreads("work", sys.maxsize, SHORT))
    """Threads for long work of admitted requests, which would block the event loop. Work is measured in tokens."""
    openings: FairQueue = field(default_factory=lambda: FairQueue("openings", OPENINGS, sys.maxsize))
    """Places for openings of admitted turns, so that the choices of one caller do not fill the event loop."""
    broadcasts: Broadcasts = field(default_factory=Broadcasts)
    """Generations that run in this process."""
