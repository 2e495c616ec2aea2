"""A session keeps to one ready verifier."""

import asyncio
from dataclasses import replace

import pytest
from prometheus_client import CollectorRegistry

from gateway.balancer import VerifierPool, rendezvous
from gateway.metrics import GatewayMetrics
from specdec.errors import NoVerifier
from tests.gateway_fakes import TOKENIZER_HASH, ScriptedVerifier

KEYS = [f"session-{n}" for n in range(300)]


def make(*verifiers: ScriptedVerifier) -> VerifierPool:
    return VerifierPool(verifiers, TOKENIZER_HASH, GatewayMetrics(CollectorRegistry()))


def test_only_the_keys_of_a_member_that_leaves_move() -> None:
    before = {key: rendezvous(key, "abcd") for key in KEYS}
    after = {key: rendezvous(key, "abd") for key in KEYS}
    moved = {key for key in KEYS if before[key] != after[key]}
    assert moved == {key for key in KEYS if before[key] == "c"}
    assert {member: sum(it == member for it in before.values()) > 30 for member in "abcd"} == dict.fromkeys(
        "abcd", True
    )


async def test_a_session_always_gets_the_same_ready_verifier() -> None:
    pool = make(*(ScriptedVerifier(f"{name}:1") for name in "abc"))
    await pool.look()
    for key in KEYS[:20]:
        assert pool.choose(key)[0] is pool.choose(key)[0]


async def test_one_that_does_not_answer_is_skipped_until_it_does() -> None:
    verifiers = [ScriptedVerifier(f"{name}:1") for name in "ab"]
    verifiers[0].reachable = False
    pool = make(*verifiers)
    await pool.look()
    assert {pool.choose(key)[0].address for key in KEYS} == {"b:1"}
    verifiers[0].reachable = True
    await pool.look()
    assert {pool.choose(key)[0].address for key in KEYS} == {"a:1", "b:1"}


async def test_one_with_another_tokenizer_is_refused() -> None:
    other = ScriptedVerifier()
    other.facts = replace(other.facts, tokenizer_hash="other")
    pool = make(other)
    await pool.look()
    assert pool.states["a:1"].startswith("refused")
    with pytest.raises(NoVerifier, match="its tokenizer is not this gateway's"):
        pool.choose("s")


async def test_nothing_is_chosen_before_the_first_look() -> None:
    pool = make(ScriptedVerifier())
    with pytest.raises(NoVerifier, match="a:1 is connecting"):
        pool.choose("s")
    with pytest.raises(NoVerifier):
        _ = pool.facts


async def test_one_to_avoid_is_taken_only_when_it_is_alone() -> None:
    pool = make(*(ScriptedVerifier(f"{name}:1") for name in "ab"))
    await pool.look()
    assert {pool.choose(key, avoid=["a:1"])[0].address for key in KEYS} == {"b:1"}
    assert pool.choose("s", avoid=["a:1", "b:1"])[0].address in {"a:1", "b:1"}


async def test_one_that_was_lost_is_chosen_again_after_a_look() -> None:
    verifier = ScriptedVerifier()
    pool = make(verifier)
    await pool.look()
    pool.lost(verifier)
    with pytest.raises(NoVerifier):
        pool.choose("s")
    waiting = asyncio.create_task(pool.wait_for_change(3600))
    await asyncio.sleep(0)
    await pool.look()
    await waiting
    assert pool.choose("s")[0] is verifier


async def test_a_session_that_has_begun_finds_only_its_own_model() -> None:
    other = ScriptedVerifier("b:1")
    other.facts = replace(other.facts, system_fingerprint="fp_other")
    pool = make(ScriptedVerifier("a:1"), other)
    await pool.look()
    assert {pool.choose(key, "fp_test")[0].address for key in KEYS} == {"a:1"}
