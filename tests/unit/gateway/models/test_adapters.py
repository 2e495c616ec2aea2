"""Adapters that verifiers list are served as models: by name, in sessions, and only where the adapter is."""

import pytest
from prometheus_client import CollectorRegistry

from gateway.metrics import GatewayMetrics
from gateway.models.served import ServedModels
from specdec.errors import FieldInvalid, ModelNotFound, NoVerifier
from specdec.wire.generation import Adapter
from tests.support.gateway_fakes import ScriptedVerifier, facts, knowing
from tests.unit.gateway.turns.in_memory import served

SQL, LAW = Adapter("sql", "fp_sql"), Adapter("law", "fp_law")
NAMES = [str(number) for number in range(50)]


def verifier(address: str, *adapters: Adapter) -> ScriptedVerifier:
    return ScriptedVerifier(address, info=facts(adapters=adapters))


async def models(*verifiers: ScriptedVerifier) -> ServedModels:
    made = ServedModels(served("base", GatewayMetrics(CollectorRegistry()), *verifiers))
    await made.first.pool.probe()
    return made


async def test_an_adapter_is_a_model_by_its_name() -> None:
    made = await models(verifier("a:1"), verifier("b:1", SQL, LAW))
    assert [(each.name, each.parent) for each in made.ready] == [("base", ""), ("sql", "base"), ("law", "base")]
    sql = made.named("sql")
    assert (sql.info.adapter, sql.info.system_fingerprint, made.first.info.adapter) == ("sql", "fp_sql", "")
    with pytest.raises(ModelNotFound, match="'tax' is not served here; 'base', 'sql' and 'law' are"):
        made.named("tax")


async def test_only_verifiers_that_list_the_adapter_are_chosen() -> None:
    made = await models(verifier("a:1"), verifier("b:1", SQL), verifier("c:1", LAW), verifier("d:1", SQL))
    model, fingerprint = made.of_session("", "sql")
    chosen = {model.pool.verifier_for(name, fingerprint) for name in NAMES}
    assert {each.address for each, _ in chosen} == {"b:1", "d:1"}
    assert {info.system_fingerprint for _, info in chosen} == {"fp_sql"}
    assert {made.first.pool.verifier_for(name)[0].address for name in NAMES} == {"a:1", "b:1", "c:1", "d:1"}


async def test_other_weights_under_one_name_continue_no_session() -> None:
    made = await models(verifier("a:1", SQL), verifier("b:1", Adapter("sql", "fp_new")))
    pool = made.first.pool
    assert {pool.verifier_for(name, "fp_sql")[0].address for name in NAMES} == {"a:1"}
    assert {pool.verifier_for(name, "fp_new")[0].address for name in NAMES} == {"b:1"}


async def test_a_session_keeps_its_adapter_and_takes_no_other() -> None:
    made = await models(verifier("a:1", SQL, LAW))
    kept = made.kept(made.named("sql"), "fp_sql")
    assert made.name_of(kept) == "sql"
    for asked in ("", "sql"):
        model, fingerprint = made.of_session(kept, asked)
        assert (model.name, model.parent, fingerprint) == ("sql", "base", "fp_sql")
    for asked in ("law", "base"):
        with pytest.raises(FieldInvalid, match="the session belongs to model 'sql'"):
            made.of_session(kept, asked)
    with pytest.raises(FieldInvalid, match="the session belongs to model 'base'"):
        made.of_session(made.kept(made.first, "fp_test"), "sql")


async def test_an_adapter_of_a_lost_verifier_is_awaited_and_not_forgotten() -> None:
    lost = verifier("a:1", SQL)
    made = await models(lost, verifier("b:1"))
    lost.reachable = False
    await made.first.pool.probe()
    model, fingerprint = made.of_session("", "sql")
    with pytest.raises(NoVerifier):
        model.pool.verifier_for("s", fingerprint)
    assert [each.name for each in made.ready] == ["base"]
    knowing(made.first.pool, verifier("b:1"))
    with pytest.raises(ModelNotFound):
        made.named("sql")


async def test_a_changed_adapter_has_the_fingerprint_of_a_ready_verifier() -> None:
    lost, ready = verifier("b:1", Adapter("sql", "fp_old")), verifier("a:1", Adapter("sql", "fp_new"))
    made = await models(ready, lost)
    lost.reachable = False
    await made.first.pool.probe()
    assert made.named("sql").fingerprint == "fp_new"


async def test_a_model_hides_an_adapter_of_its_name() -> None:
    made = await models(verifier("a:1", Adapter("base", "fp_hidden")))
    assert made.named("base") is made.first
    assert [each.parent for each in made.ready] == [""]
