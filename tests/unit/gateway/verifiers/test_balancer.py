"""A session keeps to one ready verifier."""

import asyncio
import math
from collections import Counter
from collections.abc import Collection
from contextlib import ExitStack
from dataclasses import replace

import pytest
from prometheus_client import CollectorRegistry

from gateway.metrics import GatewayMetrics
from gateway.store.pins import Pins
from gateway.verifiers.balancer import VerifierPool
from specdec.errors import NoVerifier
from specdec.serving.discovery import Endpoint, StaticSource
from tests.support.gateway_fakes import TOKENIZER_HASH, ScriptedVerifier, knowing

KEYS = [f"session-{n}" for n in range(300)]


def make(*verifiers: ScriptedVerifier) -> VerifierPool:
    return knowing(VerifierPool(TOKENIZER_HASH, GatewayMetrics(CollectorRegistry())), *verifiers)


async def test_a_session_always_gets_the_same_ready_verifier() -> None:
    pool = make(*(ScriptedVerifier(f"{name}:1") for name in "abc"))
    await pool.probe()
    for key in KEYS[:20]:
        assert pool.verifier_for(key)[0] is pool.verifier_for(key)[0]


async def test_one_that_does_not_answer_is_skipped_until_it_does() -> None:
    verifiers = [ScriptedVerifier(f"{name}:1") for name in "ab"]
    verifiers[0].reachable = False
    pool = make(*verifiers)
    await pool.probe()
    assert {pool.verifier_for(key)[0].address for key in KEYS} == {"b:1"}
    verifiers[0].reachable = True
    await pool.probe()
    assert {pool.verifier_for(key)[0].address for key in KEYS} == {"a:1", "b:1"}


async def test_one_with_another_tokenizer_is_refused() -> None:
    other = ScriptedVerifier()
    other.facts = replace(other.facts, tokenizer_hash="other")
    pool = make(other)
    await pool.probe()
    assert pool.states["a:1"].startswith("refused")
    with pytest.raises(NoVerifier, match=r"its tokenizer is not this gateway's .*other, not bytes"):
        pool.verifier_for("s")


async def test_nothing_is_chosen_before_the_first_look() -> None:
    pool = make(ScriptedVerifier())
    with pytest.raises(NoVerifier, match="a:1 is connecting"):
        pool.verifier_for("s")
    with pytest.raises(NoVerifier):
        _ = pool.info


async def test_one_to_avoid_is_taken_only_when_it_is_alone() -> None:
    pool = make(*(ScriptedVerifier(f"{name}:1") for name in "ab"))
    await pool.probe()
    assert {pool.verifier_for(key, avoid=["a:1"])[0].address for key in KEYS} == {"b:1"}
    assert pool.verifier_for("s", avoid=["a:1", "b:1"])[0].address in {"a:1", "b:1"}


async def test_one_that_was_lost_is_chosen_again_after_a_look() -> None:
    verifier = ScriptedVerifier()
    pool = make(verifier)
    await pool.probe()
    pool.mark_lost(verifier)
    with pytest.raises(NoVerifier):
        pool.verifier_for("s")
    waiting = asyncio.create_task(pool.wait_for_change(3600))
    await asyncio.sleep(0)
    await pool.probe()
    await waiting
    assert pool.verifier_for("s")[0] is verifier


async def test_a_session_that_has_begun_finds_only_its_own_model() -> None:
    other = ScriptedVerifier("b:1")
    other.facts = replace(other.facts, system_fingerprint="fp_other")
    pool = make(ScriptedVerifier("a:1"), other)
    await pool.probe()
    assert {pool.verifier_for(key, "fp_test")[0].address for key in KEYS} == {"a:1"}


async def test_none_gets_much_more_than_its_share() -> None:
    pool = make(*(ScriptedVerifier(f"{name}:1") for name in "abcd"))
    await pool.probe()
    counts: Counter[str] = Counter()
    with ExitStack() as stack:
        for number in range(100):  # all sessions hash to the same verifier
            verifier, _ = pool.verifier_for("one session", avoid=())
            stack.enter_context(pool.serving(verifier))
            counts[verifier.address] += 1
            assert max(counts.values()) <= math.ceil(1.25 * (number + 1) / 4)
    assert len(counts) == 4
    assert len({pool.verifier_for("one session")[0].address for _ in range(3)}) == 1


class WrittenPins(Pins):
    """Pins written by a test."""

    def __init__(self) -> None:
        self.pinned = ""
        self.asked: list[tuple[str, int, str, set[str]]] = []

    async def settle(self, session: str, epoch: int, choice: str, candidates: Collection[str]) -> str:
        self.asked.append((session, epoch, choice, set(candidates)))
        return self.pinned if self.pinned in candidates else choice


async def test_a_pinned_session_goes_where_it_was_while_that_is_ready() -> None:
    pins, verifiers = WrittenPins(), [ScriptedVerifier(f"{name}:1") for name in "abc"]
    pool = knowing(VerifierPool(TOKENIZER_HASH, GatewayMetrics(CollectorRegistry()), pins), *verifiers)
    await pool.probe()
    chosen, _ = pool.verifier_for("s")
    elsewhere = next(verifier for verifier in verifiers if verifier is not chosen)
    assert await pool.pinned_verifier(chosen, "s", 7, "fp_test", ()) is chosen
    assert pins.asked == [("s", 7, chosen.address, {"a:1", "b:1", "c:1"})]
    pins.pinned = elsewhere.address
    assert await pool.pinned_verifier(chosen, "s", 7, "fp_test", ()) is elsewhere
    assert await pool.pinned_verifier(chosen, "s", 7, "fp_test", [elsewhere.address]) is chosen
    pool.mark_lost(elsewhere)
    assert await pool.pinned_verifier(chosen, "s", 7, "fp_test", ()) is chosen


class Dialled(ScriptedVerifier):
    """A verifier that records whether its connection is open."""

    closed = False

    async def close(self) -> None:
        self.closed = True


async def test_the_verifiers_are_those_of_the_last_snapshot() -> None:
    pool = make()
    pool.replace((Endpoint("a:1"), Endpoint("b:1")), Dialled)
    await pool.probe()
    kept = next(verifier for verifier in (pool.verifier_for(key)[0] for key in KEYS) if verifier.address == "b:1")
    pool.replace((Endpoint("b:1"), Endpoint("c:1")), Dialled)
    await pool.probe()
    assert pool.states == {"b:1": "ready", "c:1": "ready"}
    assert any(pool.verifier_for(key)[0] is kept for key in KEYS)


async def test_one_that_drains_keeps_what_it_has_and_gets_nothing_new() -> None:
    pool = make()
    pool.replace((Endpoint("a:1"), Endpoint("b:1")), Dialled)
    await pool.probe()
    pool.replace((Endpoint("a:1", draining=True), Endpoint("b:1")), Dialled)
    assert pool.states == {"a:1": "draining", "b:1": "ready"}
    assert {pool.verifier_for(key)[0].address for key in KEYS} == {"b:1"}


async def test_one_that_says_it_drains_gets_nothing_new() -> None:
    verifier = ScriptedVerifier("a:1")
    pool = make(verifier, ScriptedVerifier("b:1"))
    verifier.draining = True
    await pool.probe()
    assert pool.states == {"a:1": "draining", "b:1": "ready"}
    assert {pool.verifier_for(key)[0].address for key in KEYS} == {"b:1"}


async def test_a_connection_stays_open_until_what_runs_over_it_is_done() -> None:
    pool = make()
    pool.replace((Endpoint("a:1"),), Dialled)
    await pool.probe()
    verifier = pool.verifier_for("s")[0]
    assert isinstance(verifier, Dialled)
    with pool.serving(verifier):
        pool.replace((), Dialled)
        await pool.probe()
        assert not verifier.closed
        with pytest.raises(NoVerifier, match="none is known"):
            pool.verifier_for("s")
    await pool.probe()
    assert verifier.closed


async def test_another_pod_at_the_same_address_is_another_verifier() -> None:
    pool = make()
    pool.replace((Endpoint("a:1", "uid-1"),), Dialled)
    await pool.probe()
    before = pool.verifier_for("s")[0]
    pool.replace((Endpoint("a:1", "uid-2"),), Dialled)
    with pytest.raises(NoVerifier, match="a:1 is connecting"):
        pool.verifier_for("s")
    pool.mark_lost(before)
    assert pool.states == {"a:1": "connecting"}


async def test_the_pool_follows_a_source() -> None:
    pool = make()
    task = asyncio.create_task(pool.follow(StaticSource(["a:1"]), ScriptedVerifier))
    await asyncio.wait_for(pool.known.wait(), 10)
    assert pool.ready_addresses == {"a:1"}
    task.cancel()
    await asyncio.wait([task])


async def test_a_slow_ready_verifier_is_probed_again_before_it_is_lost() -> None:
    verifier = ScriptedVerifier()
    pool = make(verifier)
    await pool.probe()
    verifier.slow = True
    states = []
    for _ in range(4):
        await pool.probe()
        states.append(pool.states["a:1"])
    assert states == ["ready", "ready", "unreachable", "unreachable"]
    verifier.slow = False
    await pool.probe()
    assert pool.states["a:1"] == "ready"


async def test_a_verifier_with_running_generations_is_ready_despite_late_probes() -> None:
    verifier = ScriptedVerifier()
    pool = make(verifier)
    await pool.probe()
    verifier.slow = True
    await pool.probe()
    await pool.probe()
    verifier.heard = math.inf
    for _ in range(4):
        await pool.probe()
    assert pool.states["a:1"] == "ready"
    verifier.heard = 0.0
    states = []
    for _ in range(3):
        await pool.probe()
        states.append(pool.states["a:1"])
    assert (states, verifier.redials) == (["ready", "ready", "unreachable"], 1)


async def test_one_that_failed_a_call_is_not_given_another_look() -> None:
    verifier = ScriptedVerifier()
    pool = make(verifier)
    await pool.probe()
    pool.mark_lost(verifier)
    verifier.slow = True
    await pool.probe()
    assert pool.states["a:1"] == "unreachable"


async def test_one_that_is_not_there_is_given_up_at_once() -> None:
    verifier = ScriptedVerifier()
    pool = make(verifier)
    await pool.probe()
    verifier.reachable = False
    await pool.probe()
    assert pool.states["a:1"] == "unreachable"


async def test_a_wait_that_finds_no_verifier_is_counted() -> None:
    pool = make()
    with pytest.raises(NoVerifier):
        await pool.wait_for_verifier("s", "", 0.0)
    assert pool._metrics.registry.get_sample_value("specdec_unserved_requests_total", {"model": ""}) == 1.0


async def test_one_that_is_slow_again_and_again_is_dialled_anew_now_and_then() -> None:
    verifier = ScriptedVerifier()
    pool = make(verifier)
    await pool.probe()
    verifier.slow = True
    redials = []
    for _ in range(7):
        await pool.probe()
        redials.append(verifier.redials)
    assert redials == [0, 0, 1, 1, 1, 2, 2]
