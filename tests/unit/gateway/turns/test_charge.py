"""A request charges its key once for the tokens used, however it ends."""

from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from gateway.callers.caller import ApiKey
from gateway.request import ChatPrompt, GenerationRequest, TextPrompt, TokenPrompt
from gateway.store.limits import Quota
from gateway.tools.values import Message
from gateway.turns.charge import charged, tokens_asked
from gateway.turns.generation import Generator
from specdec.errors import NoVerifier, RateLimited
from specdec.sampling.params import SamplingParams
from tests.support.gateway_fakes import CONTEXT, Script, ScriptedVerifier
from tests.unit.gateway.turns.in_memory import services

KEY = ApiKey("acme", "1", requests=10, tokens=1000)


@dataclass
class CountedLimits:
    """Limits that record their calls."""

    entered: list[int] = field(default_factory=list)
    """Tokens that each request reserved."""
    left: list[tuple[int, int]] = field(default_factory=list)
    """Requests and tokens that each request returned."""
    full: bool = False

    async def enter(self, key: ApiKey, request: str, tokens: int) -> Quota:
        if self.full:
            raise RateLimited("used up")
        self.entered.append(tokens)
        return Quota(key, 9, 900)

    async def leave(self, key: ApiKey, request: str, requests: int, tokens: int) -> None:
        self.left.append((requests, tokens))

    @property
    def used(self) -> list[int]:
        """Tokens that each request was charged in the end."""
        return [taken - back for taken, (_, back) in zip(self.entered, self.left, strict=True)]


def ask(**fields: Any) -> GenerationRequest:
    given = {"prompt": TextPrompt("Say it"), "sampling": SamplingParams(seed=1), "max_tokens": 20, "key": KEY} | fields
    return GenerationRequest(**given)


class Stage:
    """A generator whose requests are counted."""

    def __init__(self, *verifiers: ScriptedVerifier, **settings: Any) -> None:
        self.limits = CountedLimits()
        self.services = replace(services(*verifiers, **settings), limits=self.limits)  # type: ignore[arg-type]
        self.generator = Generator(self.services)

    async def run(self, **fields: Any) -> list[Any]:
        return [event async for event in self.generator.stream(ask(**fields))]


@pytest.fixture
async def stage() -> Stage:
    made = Stage(ScriptedVerifier(script=Script(text="ok", gamma=0)))
    await made.services.models.first.pool.probe()
    return made


async def test_a_request_is_charged_with_its_prompt_and_its_output(stage: Stage) -> None:
    started, *_, finished = await stage.run()
    assert started.limits["x-ratelimit-remaining-tokens"] == "900"
    assert stage.limits.entered == [2 + 20]
    assert stage.limits.used == [finished.prompt_tokens + finished.completion_tokens]


async def test_choices_share_the_prompt(stage: Stage) -> None:
    *_, finished = await stage.run(n=3)
    assert stage.limits.entered == [2 + 60]
    assert stage.limits.used == [finished.prompt_tokens + 3 * finished.completion_tokens]


async def test_a_repeated_request_costs_nothing(stage: Stage) -> None:
    await stage.run(idempotency_key="k")
    await stage.run(idempotency_key="k", key=replace(KEY, id="2"))
    assert stage.limits.left[0][0] == 0
    assert stage.limits.left[1][0] == 1, "the request is given back, too"
    assert stage.limits.used[1] == 0


async def test_what_is_used_is_settled_before_the_last_event_is_passed_on(stage: Stage) -> None:
    async for event in stage.generator.stream(ask()):
        last = event
    assert stage.limits.left
    assert last.completion_tokens


@pytest.mark.parametrize(("limits", "used"), [({"max_tokens": 20}, 26), ({"max_tokens": None}, CONTEXT)])
async def test_a_reader_pays_for_what_may_go_on_after_it_and_reads_for_nothing(
    stage: Stage, limits: dict[str, Any], used: int
) -> None:
    for _ in range(2):
        events = stage.generator.stream(ask(**limits))
        await anext(events)
        await events.aclose()
        assert stage.limits.used.pop() == used


async def test_a_reader_that_leaves_does_not_pay_for_more_than_a_minute(stage: Stage) -> None:
    events = stage.generator.stream(ask(max_tokens=None, key=replace(KEY, tokens=100)))
    await anext(events)
    await events.aclose()
    assert stage.limits.used == [100]


async def test_a_request_that_fails_pays_for_what_came() -> None:
    stage = Stage(failover={"arrival": 0.0})  # no probe has reached its verifier
    with pytest.raises(NoVerifier):
        await stage.run()
    assert stage.limits.used == [0]


async def test_what_is_over_the_limit_does_no_work(stage: Stage) -> None:
    stage.limits.full = True
    with pytest.raises(RateLimited):
        await stage.run()
    assert not stage.limits.left


async def test_callers_without_a_key_or_without_limits_are_not_counted(stage: Stage) -> None:
    for key in (None, ApiKey("acme", "1")):
        await stage.run(key=key)
        async with charged(stage.services, ask(key=key)) as charge:
            await charge.settle()
    assert not stage.limits.entered


def test_a_request_asks_for_what_is_known_of_it() -> None:
    chat = ChatPrompt((Message("user", "12345678"), Message("user", "9")))
    assert tokens_asked(ask(prompt=TokenPrompt((1, 2, 3)), max_tokens=5, n=2)) == 13
    assert tokens_asked(ask(prompt=TextPrompt("äöü"), max_tokens=None)) == 2
    assert tokens_asked(ask(prompt=chat, max_tokens=None, cap_tokens=16)) == 3 + 16


async def test_a_request_larger_than_the_limit_asks_for_all_of_it(stage: Stage) -> None:
    await stage.run(key=replace(KEY, tokens=10))
    assert stage.limits.entered == [10]
