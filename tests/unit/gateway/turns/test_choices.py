"""Several generations of one request start together, keep pace with their readers, and end together."""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

import pytest

from gateway.admission import AT_ONCE
from gateway.request import GenerationRequest, TextPrompt
from gateway.turns.events import Event, Finished, OutputRound, Started
from gateway.turns.generation import merged
from gateway.turns.statistics import Summary, total
from gateway.turns.turn import Turn
from specdec.errors import FieldInvalid, NoVerifier
from specdec.rules.speculation import Mode, Speculation
from specdec.sampling.params import MAX_SEED, FinishReason, SamplingParams
from tests.unit.gateway.turns.generation_stage import Stage
from tests.unit.gateway.turns.in_memory import header

SUMMARY = Summary(Speculation(), Counter())


class Generation:
    """A generation with this many rounds, one of which may fail. It records whether it was closed."""

    def __init__(self, name: str, rounds: int, fails_at: int = -1) -> None:
        self._name = name
        self._rounds = rounds
        self._fails_at = fails_at
        self.given = 0
        self.over = False

    async def events(self) -> AsyncGenerator[Event]:
        try:
            if self._fails_at == 0:
                raise NoVerifier(self._name)
            yield Started(Turn(self._name, "t", 1), header())
            for number in range(1, self._rounds + 1):
                if number == self._fails_at:
                    raise NoVerifier(self._name)
                self.given = number
                yield OutputRound(self._name, (), (), 0, 0, number)
            yield Finished(FinishReason.STOP, self._name, 1, self._rounds, 0, SUMMARY)
        finally:
            self.over = True


def events(*generations: Generation) -> AsyncGenerator[Event]:
    return merged([each.events() for each in generations])


async def test_one_start_then_every_event_with_its_place() -> None:
    found = [event async for event in events(Generation("a", 1), Generation("b", 3), Generation("c", 2))]
    assert [event.turn.session_id for event in found if isinstance(event, Started)] == ["a"]
    assert isinstance(found[0], Started)
    for place, (name, rounds) in enumerate([("a", 1), ("b", 3), ("c", 2)]):
        own = [event for event in found if isinstance(event, OutputRound) and event.choice == place]
        assert [(event.text, event.committed) for event in own] == [(name, n + 1) for n in range(rounds)]
        assert [event.matched_stop for event in found if isinstance(event, Finished) and event.choice == place] == [
            name
        ]


async def test_a_few_of_many_choices_are_prepared_at_once() -> None:
    prepared, gate = list[int](), asyncio.Event()

    async def prepare(choice: int) -> AsyncGenerator[Event]:
        prepared.append(choice)
        await gate.wait()
        async for event in Generation(str(choice), 1).events():
            yield event

    async with aclosing(merged([prepare(choice) for choice in range(3 * AT_ONCE)])) as joined:
        reading = asyncio.ensure_future(anext(joined))
        await asyncio.wait({reading}, timeout=0.05)
        assert prepared == [*range(AT_ONCE)]
        gate.set()
        assert isinstance(await reading, Started)
        assert prepared == [*range(3 * AT_ONCE)]


@pytest.mark.parametrize("fails_at", [0, 1, 2])
async def test_what_fails_one_fails_all(fails_at: int) -> None:
    good, bad = Generation("good", 50), Generation("bad", 5, fails_at)
    with pytest.raises(NoVerifier, match="bad"):
        async for _ in events(good, bad):
            pass
    assert (bad.over, good.over) == (True, True)
    assert good.given < 50


async def test_a_reader_who_leaves_closes_all() -> None:
    running = [Generation(name, 50) for name in "abc"]
    async with aclosing(events(*running)) as stream:
        async for event in stream:
            if isinstance(event, OutputRound):
                break
    assert all(each.over for each in running)


async def test_a_reader_who_is_slow_holds_them_back() -> None:
    running = [Generation(name, 50) for name in "ab"]
    async with aclosing(events(*running)) as stream:
        for _ in range(6):
            await anext(stream)
        assert sum(each.given for each in running) <= 6 + len(running)


async def test_the_choices_of_a_prompt_share_its_encoding(monkeypatch: pytest.MonkeyPatch) -> None:
    stage, encoded = Stage(), list[str]()
    prompts = stage.services.models.first.prompts
    encode = prompts.encode_request

    async def counted(request: GenerationRequest, length: int, history: Sequence[int]) -> tuple[int, ...]:
        assert isinstance(request.prompt, TextPrompt)
        encoded.append(request.prompt.text)
        return await encode(request, length, history)

    monkeypatch.setattr(prompts, "encode_request", counted)
    found = await stage.run(prompt=TextPrompt("a"), more_prompts=(TextPrompt("b"),), n=3)
    assert sorted(encoded) == ["a", "b"]
    assert isinstance(found[0], Started)
    assert found[0].prompts == ((97,),) * 3 + ((98,),) * 3


def test_each_choice_has_a_seed_of_its_own() -> None:
    request = GenerationRequest(prompt=TextPrompt("x"), sampling=SamplingParams(seed=MAX_SEED - 1), n=3, seeded=True)
    assert [each.sampling.seed for each in request.choices()] == [MAX_SEED - 1, MAX_SEED, 0]
    assert {(each.n, each.seeded, each.request_id) for each in request.choices()} == {(3, True, request.request_id)}


@pytest.mark.parametrize("n", [0, -1, 17])
def test_the_number_of_choices_is_bounded(n: int) -> None:
    with pytest.raises(FieldInvalid) as refused:
        GenerationRequest(prompt=TextPrompt("x"), sampling=SamplingParams(), n=n)
    assert refused.value.param == "n"


def test_sums_over_choices_add_up() -> None:
    speculation = Speculation(Mode.BLOCK, 3)
    first = Summary(speculation, Counter([(3, 0, ""), (3, 3, ""), (3, 3, "")]))
    second = Summary(speculation, Counter([(1, 1, ""), (0, 0, "late")]))
    both = total([first, second])
    assert both.acceptance_histogram == (1, 1, 0, 2)
    assert (both.num_spec_steps, both.num_plain_steps) == (4, 1)
    assert (both.num_draft_tokens, both.num_accepted_draft_tokens) == (10, 7)
    assert both.fallbacks == {"late": 1}
    assert total([first]) == first
