"""Adoption of turns whose gateway stopped renewing its lease."""

from typing import Any

import pytest

from gateway.models.served import ServedModels
from gateway.store.values import LapsedTurn
from gateway.turns.adopter import Adopter
from tests.support.gateway_fakes import Script, ScriptedVerifier, output, until
from tests.unit.gateway.turns.in_memory import PROMPT, TURN, header, open_turn, served, services


class Stage:
    """A gateway's parts, and one turn that another gateway has abandoned."""

    def __init__(self, script: Script | None = None, **settings: Any) -> None:
        self.services = services(ScriptedVerifier(script=script), **{"grace": 60.0} | settings)
        self.store, self.pool = self.services.sessions, self.services.models.first.pool

    async def orphan(self, silent: float = 1.0, resumable: bool = True) -> None:
        await self.pool.probe()
        await open_turn(self.store, header(resumable=resumable))
        self.store.lapsed = [LapsedTurn(TURN.session_id, TURN.tenant, TURN.number, silent)]

    async def adopt_orphans(self) -> None:
        await Adopter(self.services).adopt_orphans()

    def outcomes(self, outcome: str) -> float:
        found = self.services.metrics.registry.get_sample_value("specdec_orphaned_turns_total", {"outcome": outcome})
        return found or 0.0


async def test_a_turn_is_continued_to_its_end_though_nobody_reads_it_yet() -> None:
    stage = Stage()
    await stage.orphan()
    await stage.adopt_orphans()
    await until(lambda: stage.services.broadcasts.get(TURN.name) is None)
    assert stage.store.only.finish == "stop"
    assert stage.store.only.tokens == [*PROMPT, *output(Script())]
    assert stage.outcomes("continued") == 1


async def test_a_turn_pauses_if_no_reader_comes_within_the_rest_of_the_grace() -> None:
    stage = Stage(Script(text="x" * 150, gamma=0, pause=0.01), grace=1.0)
    await stage.orphan(silent=0.95)
    await stage.adopt_orphans()
    await until(lambda: stage.services.broadcasts.get(TURN.name) is None)
    await until(lambda: stage.store.journal[-1] == "release")
    assert (stage.store.only.finish, stage.store.only.owner) == ("", "")


@pytest.mark.parametrize(("silent", "resumable"), [(61.0, True), (1.0, False)])
async def test_a_turn_nobody_will_come_back_for_is_paused_at_once(silent: float, resumable: bool) -> None:
    stage = Stage()
    await stage.orphan(silent, resumable)
    await stage.adopt_orphans()
    assert stage.services.broadcasts.get(TURN.name) is None
    assert (stage.store.only.tokens, stage.store.only.owner) == (list(PROMPT), "")
    assert stage.outcomes("paused") == 1


async def test_a_turn_that_another_gateway_took_first_is_left_to_it() -> None:
    stage = Stage()
    await stage.orphan()
    await stage.store.acquire(TURN.session_id, "other")
    await stage.adopt_orphans()
    assert stage.store.only.owner == "other"
    assert stage.services.broadcasts.get(TURN.name) is None


async def test_our_own_turn_is_left_to_itself() -> None:
    stage = Stage(Script(pause=0.01))
    await stage.orphan()
    await stage.adopt_orphans()
    epoch = stage.store.only.epoch
    stage.store.lapsed = [LapsedTurn(TURN.session_id, "t", 1, 1.0)]
    await stage.adopt_orphans()
    assert stage.store.only.epoch == epoch
    await until(lambda: stage.store.only.finish)


async def test_one_that_cannot_be_read_keeps_nobody_from_the_others() -> None:
    stage = Stage()
    await stage.orphan()
    stage.store.lapsed.insert(0, LapsedTurn("1" * 32, "t", 1, 1.0))
    await stage.adopt_orphans()
    await until(lambda: stage.store.only.finish)


async def test_a_store_that_is_away_is_looked_at_again_later() -> None:
    stage = Stage()
    await stage.orphan()
    stage.store.down = True
    await stage.adopt_orphans()
    stage.store.down = False
    await stage.adopt_orphans()
    await until(lambda: stage.store.only.finish)


async def test_a_turn_of_a_model_that_is_not_served_here_is_left_to_others() -> None:
    stage = Stage()
    models = ServedModels(*(served(name, stage.services.metrics) for name in ("large", "small")))
    object.__setattr__(stage.services, "models", models)
    await stage.orphan()
    await stage.adopt_orphans()
    assert "acquire" not in stage.store.journal
    assert (stage.outcomes("continued"), stage.outcomes("paused")) == (0, 0)
