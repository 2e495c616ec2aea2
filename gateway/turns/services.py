"""The parts of the gateway that every generation uses, joined once per process."""

from dataclasses import dataclass, field

from gateway.admission import Admission
from gateway.callers.key_file import KeyFile
from gateway.config import GatewaySettings
from gateway.drain import Drain
from gateway.metrics import GatewayMetrics
from gateway.models.served import ServedModels
from gateway.store.limits import Limits
from gateway.store.sessions import SessionStore
from gateway.text.grammar_checker import GrammarChecker
from gateway.turns.broadcast import Broadcasts
from gateway.turns.leases import Leases
from gateway.verifiers.pass_loop import PassLoops


@dataclass(frozen=True, slots=True)
class Services:
    """What a generation works with."""

    models: ServedModels
    sessions: SessionStore
    drain: Drain
    generations: Admission
    """Lets generations in."""
    calls: Admission
    """Lets in the other calls that use the session store."""
    metrics: GatewayMetrics
    settings: GatewaySettings
    passes: PassLoops
    """The generations of this process at its verifiers."""
    leases: Leases
    """The leases of the turns that this process generates."""
    owner: str
    """The name under which this process owns turns in the session store; every process has its own."""
    keys: KeyFile | None = None
    """The API keys that callers must have; None where nobody is asked for one."""
    limits: Limits | None = None
    """Counts what each API key has used; None where nobody is asked for one."""
    grammars: GrammarChecker = field(default_factory=GrammarChecker)
    broadcasts: Broadcasts = field(default_factory=Broadcasts)
    """The generations that run in this process."""
