"""What generations work with, put together once per process."""

from dataclasses import dataclass, field

from gateway.balancer import VerifierPool
from gateway.config import GatewaySettings
from gateway.drain import Drain
from gateway.live import LiveTurns
from gateway.metrics import GatewayMetrics
from gateway.sessions import SessionStore
from gateway.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Services:
    """What a generation works with."""

    tokenizer: Tokenizer
    pool: VerifierPool
    sessions: SessionStore
    drain: Drain
    metrics: GatewayMetrics
    settings: GatewaySettings
    owner: str
    """This process, as the session store knows it."""
    live: LiveTurns = field(default_factory=LiveTurns)
