"""What becomes of turns whose gateway fell silent."""

from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from gateway.config import GatewaySettings, TokenizerSettings
from gateway.drain import Drain
from gateway.metrics import GatewayMetrics
from gateway.store.values import LapsedTurn
from gateway.turns.adopter import Adopter
from gateway.turns.plan import Plan
from gateway.turns.services import Services
from gateway.turns.turn import Header, header_to_bytes
from gateway.verifiers.balancer import VerifierPool
from specdec.rules.params import Mode, SamplingParams, Speculation
from tests.gateway_fakes import ByteTokenizer, MemorySessionStore, Script, ScriptedVerifier, output, until

SESSION = "0" * 32
NAME = f"{SESSION}-1"
PROMPT = tuple(b"Say it")


class Stage:
    """A gateway's parts, and one turn that another gateway has left behind."""

    def __init__(self, script: Script | None = None, **settings: Any) -> None:
        self.store = MemorySessionStore()
        metrics = GatewayMetrics(CollectorRegistry())
        self.pool = VerifierPool((ScriptedVerifier(script=script),), ByteTokenizer.fingerprint, metrics)
        self.services = Services(
            tokenizer=ByteTokenizer(),
            pool=self.pool,
            sessions=self.store,
            drain=Drain(metrics),
            metrics=metrics,
            settings=GatewaySettings(
                model=TokenizerSettings(path=Path("models/bytes")), store_patience=0.0, **{"grace": 60.0} | settings
            ),
            owner="me",
        )

    async def orphan(self, silent: float = 1.0, resumable: bool = True) -> None:
        await self.pool.look()
        plan = Plan(PROMPT, SamplingParams(seed=7), 50, (256,), Speculation(Mode.REJECTION), (), None)
        header = Header(plan, "bytes", "fp_test", 0, resumable=resumable)
        await self.store.open(SESSION, "r", PROMPT, header_to_bytes(header), "fp_test", "t")
        self.store.lapsed = [LapsedTurn(SESSION, "t", 1, silent)]

    async def look(self) -> None:
        await Adopter(self.services).look()

    def outcomes(self, outcome: str) -> float:
        found = self.services.metrics.registry.get_sample_value("specdec_orphaned_turns_total", {"outcome": outcome})
        return found or 0.0


async def test_a_turn_is_continued_to_its_end_though_nobody_reads_it_yet() -> None:
    stage = Stage()
    await stage.orphan()
    await stage.look()
    await until(lambda: stage.services.live.get(NAME) is None)
    assert stage.store.only.finish == "stop"
    assert stage.store.only.tokens == [*PROMPT, *output(Script())]
    assert stage.outcomes("continued") == 1


async def test_it_is_paused_where_it_stands_when_nobody_comes_within_what_is_left_of_the_grace() -> None:
    stage = Stage(Script(text="x" * 150, gamma=0, pause=0.01), grace=1.0)
    await stage.orphan(silent=0.95)
    await stage.look()
    await until(lambda: stage.services.live.get(NAME) is None)
    assert (stage.store.only.finish, stage.store.only.owner) == ("", "")
    assert stage.store.journal[-1] == "release"


@pytest.mark.parametrize(("silent", "resumable"), [(61.0, True), (1.0, False)])
async def test_a_turn_nobody_will_come_back_for_is_paused_at_once(silent: float, resumable: bool) -> None:
    stage = Stage()
    await stage.orphan(silent, resumable)
    await stage.look()
    assert stage.services.live.get(NAME) is None
    assert (stage.store.only.tokens, stage.store.only.owner) == (list(PROMPT), "")
    assert stage.outcomes("paused") == 1


async def test_a_turn_that_another_gateway_took_first_is_left_to_it() -> None:
    stage = Stage()
    await stage.orphan()
    await stage.store.acquire(SESSION, "other")
    await stage.look()
    assert stage.store.only.owner == "other"
    assert stage.services.live.get(NAME) is None


async def test_our_own_turn_is_left_to_itself() -> None:
    stage = Stage(Script(pause=0.01))
    await stage.orphan()
    await stage.look()
    epoch = stage.store.only.epoch
    stage.store.lapsed = [LapsedTurn(SESSION, "t", 1, 1.0)]
    await stage.look()
    assert stage.store.only.epoch == epoch
    await until(lambda: stage.store.only.finish)


async def test_one_that_cannot_be_read_keeps_nobody_from_the_others() -> None:
    stage = Stage()
    await stage.orphan()
    stage.store.lapsed.insert(0, LapsedTurn("1" * 32, "t", 1, 1.0))
    await stage.look()
    await until(lambda: stage.store.only.finish)


async def test_a_store_that_is_away_is_looked_at_again_later() -> None:
    stage = Stage()
    await stage.orphan()
    stage.store.down = True
    await stage.look()
    stage.store.down = False
    await stage.look()
    await until(lambda: stage.store.only.finish)
