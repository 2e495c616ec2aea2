"""Prompts with a common prefix go to one verifier, within the bound of its load."""

import random

from prometheus_client import CollectorRegistry

from gateway.metrics import GatewayMetrics
from gateway.verifiers.balancer import VerifierPool
from gateway.verifiers.placement import LONGEST, PrefixMemory, prefix_of, ranking_key
from specdec.rules.blocks import BLOCK_TOKENS
from tests.support.gateway_fakes import TOKENIZER_HASH, ScriptedVerifier, knowing

SYSTEM = tuple(range(5 * BLOCK_TOKENS))


def prompt(*last: int, system: tuple[int, ...] = SYSTEM) -> tuple[int, ...]:
    return (*system, *last)


def prefix(*last: int, system: tuple[int, ...] = SYSTEM, domain: str = "") -> list[bytes]:
    return list(prefix_of(prompt(*last, system=system), "f", domain))


def make(count: int = 4) -> VerifierPool:
    verifiers = [ScriptedVerifier(f"{name}:1") for name in "abcdefgh"[:count]]
    return knowing(VerifierPool(TOKENIZER_HASH, GatewayMetrics(CollectorRegistry())), *verifiers)


def test_prefixes_share_the_blocks_before_the_first_difference() -> None:
    first, second = prefix(*range(40)), prefix(*range(16), *range(7, 31))
    assert first[:6] == second[:6]
    assert first[6:] != second[6:]
    assert not {*prefix(domain="ann")} & {*prefix(domain="ben")}


def test_a_block_that_ends_the_prompt_is_computed_anyway() -> None:
    assert len(prefix()) == 4
    assert len(prefix(1)) == 5
    assert prefix(system=(1,)) == []


def test_a_long_prompt_is_hashed_up_to_a_bound() -> None:
    assert len(prefix_of(tuple(range(3 * LONGEST)), "f", "")) == LONGEST // BLOCK_TOKENS


def test_short_prompts_are_ranked_by_their_session() -> None:
    assert ranking_key([], "s") == "s"
    assert ranking_key(prefix(1), "s") == ranking_key(prefix(2), "t")


def test_the_longest_known_prefix_below_the_bound_wins() -> None:
    memory = PrefixMemory()
    memory.note(prefix(1), "a")
    memory.note(prefix(*range(40)), "b")
    loads = {"a": 0, "b": 3, "c": 0}
    assert memory.choice(prefix(*range(40)), loads, 4) == "b"
    assert memory.choice(prefix(*range(40)), loads, 3) == "a"
    assert memory.choice(prefix(9), loads, 4) == "a"
    assert memory.choice(prefix(9), {"c": 0}, 4) is None
    assert memory.choice(prefix(system=tuple(range(100, 200))), loads, 4) is None


def test_the_least_recently_used_blocks_are_dropped() -> None:
    memory = PrefixMemory(size=8)
    old, new = prefix(system=tuple(range(100, 180))), prefix(system=tuple(range(300, 380)))
    memory.note(old, "a")
    memory.note(new, "b")
    memory.note(prefix(1), "c")
    assert len(memory) == 8
    assert memory.choice(old, {"a": 0}, 1) is None
    assert memory.choice(new[:1], {"b": 0}, 1) == "b"


def place(pool: VerifierPool, session: str, tokens: tuple[int, ...]) -> str:
    """Place a new session by its prompt, record it, and return the address of its verifier."""
    found = prefix_of(tokens, "f", "")
    verifier, _ = pool.verifier_for(session, prefix=found)
    pool.note(verifier, found)
    return verifier.address


async def test_sessions_with_one_system_prompt_share_a_verifier() -> None:
    pool = make()
    await pool.probe()
    assert len({place(pool, f"s{n}", prompt(n, 2)) for n in range(50)}) == 1


async def test_gateways_that_do_not_know_each_other_choose_alike() -> None:
    pools = [make(), make()]
    for pool in pools:
        await pool.probe()
    systems = [tuple(range(n, n + 100)) for n in range(30)]
    first, second = ([place(pool, f"{n}", each) for n, each in enumerate(systems)] for pool in pools)
    assert first == second
    assert len({*first}) == 4


async def test_a_full_verifier_is_not_chosen_for_its_prefix() -> None:
    pool = make(2)
    await pool.probe()
    verifier, _ = pool.verifier_for("s", prefix=prefix(1))
    pool.note(verifier, prefix(1))
    with pool.serving(verifier), pool.serving(verifier):
        assert pool.verifier_for("t", prefix=prefix(1))[0] is not verifier


async def test_a_conversation_that_is_sent_whole_stays_where_its_turns_were() -> None:
    pool, history = make(), list(prompt(1))
    await pool.probe()
    addresses = set()
    for turn in range(8):
        addresses.add(place(pool, f"turn-{turn}", tuple(history)))
        history += random.Random(turn).choices(range(1000), k=60)
    assert len(addresses) == 1


async def test_a_verifier_that_is_gone_is_not_chosen_for_its_prefix() -> None:
    pool = make(2)
    await pool.probe()
    verifier, _ = pool.verifier_for("s", prefix=prefix(1))
    pool.note(verifier, prefix(1))
    pool.mark_lost(verifier)
    assert pool.verifier_for("t", prefix=prefix(1))[0] is not verifier
