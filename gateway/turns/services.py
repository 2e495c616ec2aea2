"""What generations work with, put together once per process."""

from dataclasses import dataclass, field

from gateway.config import GatewaySettings
from gateway.drain import Drain
from gateway.metrics import GatewayMetrics
from gateway.store.sessions import SessionStore
from gateway.text.tokenizer import Tokenizer
from gateway.turns.broadcast import Broadcasts
from gateway.verifiers.balancer import VerifierPool


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
    live: Broadcasts = field(default_factory=Broadcasts)
