"""Services whose store and verifiers are in this process, and one turn to open in the store."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry

from gateway.admission import Admission, Drain
from gateway.config import GatewaySettings, TokenizerSettings
from gateway.metrics import GatewayMetrics
from gateway.models.served import ServedModel, ServedModels
from gateway.tasks import cancel_and_wait
from gateway.text.prompt_encoder import PromptEncoder
from gateway.turns.broadcast import Generated, Leases
from gateway.turns.events import Event
from gateway.turns.services import Services
from gateway.turns.turn import Header, Turn, header_to_bytes
from gateway.verifiers.balancer import VerifierPool
from gateway.verifiers.pass_loop import PassLoops
from specdec.rules.speculation import Mode, Speculation
from specdec.sampling.params import SamplingParams
from specdec.wire.generation import GenerationCall
from tests.support.gateway_fakes import EOS, ByteTokenizer, ScriptedVerifier, knowing
from tests.support.memory_sessions import MemorySessionStore

PROMPT = tuple(b"Say it")
TURN = Turn("0" * 32, "t", 1)
LOOPS: list[PassLoops] = []
"""Pass loops of all services made in a test, closed at its end."""


def services(
    *verifiers: ScriptedVerifier, owner: str = "me", store: MemorySessionStore | None = None, **settings: Any
) -> Services:
    """Build a gateway's services over these verifiers and this store; by default over one verifier and a new store."""
    metrics = GatewayMetrics(CollectorRegistry())
    values = {"grace": 0.0, "store_patience": 0.0} | settings
    chosen = GatewaySettings(model=TokenizerSettings(path=Path("models/bytes")), **values)
    sessions = store or MemorySessionStore()
    passes = PassLoops(sessions, metrics)
    LOOPS.append(passes)
    return Services(
        models=ServedModels(served("bytes", metrics, *(verifiers or (ScriptedVerifier(),)))),
        sessions=sessions,
        drain=Drain(metrics),
        generations=Admission("generations", chosen.admission.running, chosen.admission, metrics),
        calls=Admission("calls", chosen.admission.calls, chosen.admission, metrics),
        metrics=metrics,
        settings=chosen,
        passes=passes,
        leases=Leases(sessions, owner, chosen.lease),
        owner=owner,
    )


def served(name: str, metrics: GatewayMetrics, *verifiers: ScriptedVerifier) -> ServedModel:
    """Return a model of that name, served by those verifiers."""
    tokenizer = ByteTokenizer()
    pool = knowing(VerifierPool(tokenizer.fingerprint, metrics, model=name), *verifiers)
    return ServedModel(name, tokenizer, PromptEncoder(tokenizer), pool)


def header(stop: Sequence[str] = (), resumable: bool = True) -> Header:
    """Return the header of a turn on PROMPT."""
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


async def events_of(generated: Generated) -> AsyncGenerator[Event]:
    """Yield the events that a generation publishes. Closing the iterator stops the generation."""
    events: asyncio.Queue[Event | None] = asyncio.Queue()
    task = asyncio.create_task(generated.run(events.put_nowait))
    task.add_done_callback(lambda _: events.put_nowait(None))
    try:
        while (event := await events.get()) is not None:
            yield event
        await task
    finally:
        await cancel_and_wait(task)
