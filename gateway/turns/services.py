"""The parts of the gateway that every generation uses, joined once per process."""

from dataclasses import dataclass, field

from gateway.admission import Admission
from gateway.config import GatewaySettings
from gateway.drain import Drain
from gateway.metrics import GatewayMetrics
from gateway.store.sessions import SessionStore
from gateway.text.grammar_checker import GrammarChecker
from gateway.text.prompt_encoder import PromptEncoder
from gateway.text.tokenizer import ModelTokenizer
from gateway.turns.broadcast import Broadcasts
from gateway.verifiers.balancer import VerifierPool


@dataclass(frozen=True, slots=True)
class Services:
    """What a generation works with."""

    tokenizer: ModelTokenizer
    prompts: PromptEncoder
    pool: VerifierPool
    sessions: SessionStore
    drain: Drain
    generations: Admission
    """Lets generations in."""
    calls: Admission
    """Lets in the other calls that use the session store."""
    metrics: GatewayMetrics
    settings: GatewaySettings
    owner: str
    """The name under which this process owns turns in the session store; every process has its own."""
    grammars: GrammarChecker = field(default_factory=GrammarChecker)
    broadcasts: Broadcasts = field(default_factory=Broadcasts)
    """The generations that run in this process."""
