"""Services whose store and verifiers are in this process, and one turn to open in the store."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry

from gateway.admission import Admission
from gateway.config import GatewaySettings, TokenizerSettings
from gateway.drain import Drain
from gateway.metrics import GatewayMetrics
from gateway.models.served import ServedModel, ServedModels
from gateway.text.prompt_encoder import PromptEncoder
from gateway.turns.services import Services
from gateway.turns.turn import Header, Turn, header_to_bytes
from gateway.verifiers.balancer import VerifierPool
from specdec.rules.params import Mode, SamplingParams, Speculation
from specdec.wire.generation import GenerationCall
from tests.gateway_fakes import EOS, ByteTokenizer, ScriptedVerifier, knowing
from tests.memory_sessions import MemorySessionStore

PROMPT = tuple(b"Say it")
TURN = Turn("0" * 32, "t", 1)


def services(*verifiers: ScriptedVerifier, owner: str = "me", **settings: Any) -> Services:
    """The parts of a gateway over those verifiers, or over one; every gateway has a store of its own at first."""
    metrics = GatewayMetrics(CollectorRegistry())
    values = {"grace": 0.0, "store_patience": 0.0} | settings
    chosen = GatewaySettings(model=TokenizerSettings(path=Path("models/bytes")), **values)
    return Services(
        models=ServedModels(served("bytes", metrics, *(verifiers or (ScriptedVerifier(),)))),
        sessions=MemorySessionStore(),
        drain=Drain(metrics),
        generations=Admission("generations", chosen.admission.running, chosen.admission, metrics),
        calls=Admission("calls", chosen.admission.calls, chosen.admission, metrics),
        metrics=metrics,
        settings=chosen,
        owner=owner,
    )


def served(name: str, metrics: GatewayMetrics, *verifiers: ScriptedVerifier) -> ServedModel:
    """A model of that name, which those verifiers serve."""
    tokenizer = ByteTokenizer()
    pool = knowing(VerifierPool(tokenizer.fingerprint, metrics, model=name), *verifiers)
    return ServedModel(name, tokenizer, PromptEncoder(tokenizer), pool)


def header(stop: Sequence[str] = (), resumable: bool = True) -> Header:
    """The header of a turn on PROMPT."""
    call = GenerationCall(
        tokens=PROMPT,
        prompt_len=len(PROMPT),
        sampling=SamplingParams(seed=7),
        max_tokens=50,
        stop_token_ids=(EOS,),
        speculation=Speculation(Mode.REJECTION),
    )
    return Header(call, tuple(stop), "bytes", "fp_test", 0, resumable=resumable)


async def open_turn(store: MemorySessionStore, head: Header) -> None:
    """Open TURN with that header."""
    await store.open(TURN.session_id, "r", PROMPT, header_to_bytes(head), head.system_fingerprint, TURN.tenant)
