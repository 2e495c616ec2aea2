"""A drafter that lies costs speed. In the two modes that use its q̂, it may also choose among likely tokens.

Greedy decoding and mode `coupled` are functions of the target alone, so no lie changes their tokens. Modes `rejection`
and `block` at a temperature are exact for the q̂ that is sent. If a drafter draws from r and sends q̂, the law of a
round's first token is the following instead of p:

r(y) · min(1, p(y) / q̂(y)) + (1 − Σₓ r(x) · min(1, p(x) / q̂(x))) · (p − q̂)₊(y) / Σₓ (p − q̂)₊(x)

The G-tests show that this is the law, that it is not the target's, and that a token excluded by the request's own
parameters stays excluded. Each of the five tests uses 400 sessions and fails below p = 1e-6.
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from structlog.testing import capture_logs

from specdec.rules.speculation import Mode, TreeOptions
from specdec.sampling.params import SamplingParams
from specdec.sampling.vocabulary import fingerprint
from tests.attacks.hostile_drafter import EVEN, HONEST, LIES, LIKELY, RARE, REFUSED, Claim, ahead
from tests.conformance.g_test import Law, p_value
from tests.conformance.served_pair import Ask, Done, generate, running_verifier
from tests.conformance.small_pair import PROMPT, VOCAB_SIZE, small
from tests.integration.verifier.client import Client
from tests.integration.verifier.scripted_drafter import RunningDrafter, Script, ScriptedDrafter
from tests.support.tiny_models import make_tokenizer

pytestmark = pytest.mark.integration

LENGTH = 10
SESSIONS = 400
P_VALUE = 1e-6
LOSSY = 1e-12
TREE = TreeOptions(8, 2, 3)
GREEDY = SamplingParams(temperature=0.0)
HASTY = {"timeout": 0.05, "probe": 0.3}
NO_END = -1
BAN = replace(SamplingParams(), banned_token_ids=(LIKELY,))


@asynccontextmanager
async def lied_to(
    script: Script, outcomes: int = 0, **settings: object
) -> AsyncIterator[tuple[Client, ScriptedDrafter]]:
    """Yield a client of a real verifier, and its one drafter, which answers by a script and pushes for `outcomes`."""
    liar = ScriptedDrafter(script, fingerprint(make_tokenizer(VOCAB_SIZE).get_vocab()), outcomes=outcomes)
    running = await RunningDrafter.start(liar)
    try:
        async with running_verifier(small().target, running.address, **settings) as client:
            yield client, liar
    finally:
        await running.server.stop(0)


def asks(mode: Mode, params: SamplingParams, gammas: Sequence[int | None]) -> list[Ask]:
    """Return one generation for each γ, with distinct seeds."""
    prompts = [(*PROMPT, number % VOCAB_SIZE) for number in range(len(gammas))]
    speculates = mode is not Mode.OFF
    return [
        Ask(mode, replace(params, seed=seed), gamma if speculates else None, prompt, LENGTH)
        for seed, (gamma, prompt) in enumerate(zip(gammas, prompts, strict=True))
    ]


def tokens(generations: Sequence[Done]) -> list[tuple[int, ...]]:
    return [done.tokens for done in generations]


@pytest.mark.parametrize("lie", LIES)
async def test_no_lie_changes_a_greedy_or_a_coupled_token_or_ends_the_verifier(lie: str) -> None:
    gammas = (1, 3, None, 5)
    async with lied_to(LIES[lie], drafting=HASTY) as (client, liar):
        for mode, params in (
            (Mode.REJECTION, GREEDY),
            (Mode.BLOCK, GREEDY),
            (Mode.COUPLED, SamplingParams()),
        ):
            told = liar.handled
            plain = await generate(client, asks(Mode.OFF, params, gammas), len(gammas))
            found = await generate(client, asks(mode, params, gammas), len(gammas))
            assert liar.handled > told, "it was asked for drafts"
            assert tokens(found) == tokens(plain), mode
        for mode in (Mode.REJECTION, Mode.BLOCK):
            sampled = tokens(await generate(client, asks(mode, SamplingParams(), gammas), len(gammas)))
            assert {len(answer) for answer in sampled} == {LENGTH}
            assert {token for answer in sampled for token in answer} <= set(range(VOCAB_SIZE))
        assert await client.info()


@pytest.mark.parametrize("lie", [lie for lie in LIES if lie.startswith(("q̂", "tokens", "parents"))])
async def test_no_lie_changes_a_token_of_a_session_that_drafts_trees(lie: str) -> None:
    async with lied_to(LIES[lie], drafting=HASTY) as (client, liar):
        for mode, params in ((Mode.REJECTION, GREEDY), (Mode.COUPLED, SamplingParams())):
            told = liar.handled
            plain = await generate(client, asks(Mode.OFF, params, [None] * 2), 2)
            trees = [replace(each, tree=TREE) for each in asks(mode, params, [None] * 2)]
            assert tokens(await generate(client, trees, 2)) == tokens(plain), mode
            assert liar.handled > told, "it was asked for drafts"
        assert await client.info()


WAYS = {
    "rejection": (Mode.REJECTION, SamplingParams(), None),
    "block": (Mode.BLOCK, SamplingParams(), None),
    "greedy": (Mode.REJECTION, GREEDY, None),
    "coupled": (Mode.COUPLED, SamplingParams(), None),
    "trees": (Mode.REJECTION, SamplingParams(), TREE),
    "trees with replacement": (Mode.REJECTION, SamplingParams(), replace(TREE, replacement=True)),
    "coupled trees": (Mode.COUPLED, SamplingParams(), TREE),
}
"""Mode, parameters and trees of the sessions that are lied to."""


def why_refused(lie: str, way: str) -> str:
    """Return the reason of the refusal; empty if the way needs nothing of what is false."""
    if lie.startswith("parents") and "trees" in way:
        return "siblings share a token" if way == "trees" else ""
    needs_q = way in ("rejection", "block", "trees", "trees with replacement")
    return REFUSED[lie] if needs_q or not lie.startswith(("q̂", "uniform")) else ""


@pytest.mark.parametrize("pushed", [False, True], ids=["for the verdict", "pushed"])
@pytest.mark.parametrize("lie", REFUSED)
async def test_what_no_pass_can_judge_is_refused_on_arrival(lie: str, pushed: bool) -> None:
    outcomes = 4 if pushed else 0
    script = ahead(LIES[lie]) if pushed else LIES[lie]
    async with lied_to(script, outcomes, drafting={**HASTY, "outcomes": outcomes}) as (client, _):
        for way, (mode, params, tree) in WAYS.items():
            if pushed and tree is not None:
                continue  # trees are never pushed
            with capture_logs() as logs:
                work = asks(mode, params, [None if tree else 3] * 2)
                done = await generate(client, [replace(each, tree=tree) for each in work], 2)
            assert {len(answer) for answer in tokens(done)} == {LENGTH}
            reasons = {each["detail"] for each in logs if each["event"] == "draft_malformed"}
            expected = why_refused(lie, way)
            assert bool(reasons) == bool(expected), (way, reasons)
            assert all(expected in reason for reason in reasons), (way, reasons)


def law_of_a_lie(claim: Claim, params: SamplingParams) -> Law:
    """Return the law of a round's first token if the claim's token is always drafted."""
    (p,) = small().plain.rows(params, PROMPT, [()])
    q = claim.q()
    kept = min(1.0, p[claim.token] / q[claim.token])
    left = [max(0.0, target - said) for target, said in zip(p, q, strict=True)]
    left = left if sum(left) else p
    recovered = [(1.0 - kept) * rest / sum(left) for rest in left]
    return {(token,): kept * (token == claim.token) + rest for token, rest in enumerate(recovered)}


async def first_tokens(script: Script, mode: Mode, params: SamplingParams) -> list[tuple[int, ...]]:
    """Return the first token of each of many sessions whose first round judges one draft."""
    work = [Ask(mode, replace(params, seed=seed), 1, PROMPT, 2) for seed in range(SESSIONS)]
    async with lied_to(script) as (client, _):
        done = await generate(client, work, at_once=SESSIONS // 4)
    assert all(each.rounds[0].draft_tokens for each in done), "no draft was late"
    return [each.tokens[:1] for each in done]


@pytest.mark.parametrize("mode", [Mode.REJECTION, Mode.BLOCK], ids=str)
async def test_what_a_lie_about_its_own_distribution_does_to_the_law(mode: Mode) -> None:
    params = SamplingParams()
    found = await first_tokens(EVEN.script, mode, params)
    assert p_value(found, law_of_a_lie(EVEN, params)) >= P_VALUE
    assert p_value(found, small().plain.law(params, PROMPT, 1, NO_END)) < LOSSY, "the lie does have an effect"


async def test_the_largest_lie_chooses_the_token() -> None:
    params = SamplingParams()
    assert law_of_a_lie(RARE, params)[LIKELY,] == 1.0
    assert set(await first_tokens(RARE.script, Mode.REJECTION, params)) == {(LIKELY,)}


async def test_control_a_drafter_that_says_what_it_does_has_no_effect() -> None:
    params = SamplingParams()
    found = await first_tokens(HONEST, Mode.REJECTION, params)
    assert p_value(found, small().plain.law(params, PROMPT, 1, NO_END)) >= P_VALUE


@pytest.mark.parametrize("mode", [Mode.REJECTION, Mode.BLOCK], ids=str)
async def test_no_lie_brings_a_token_that_the_request_makes_impossible(mode: Mode) -> None:
    found = await first_tokens(RARE.script, mode, BAN)
    assert (LIKELY,) not in found
    assert p_value(found, law_of_a_lie(RARE, BAN)) >= P_VALUE
