"""A generator with a scripted store and scripted verifiers, and the contents of its events."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any

from gateway.request import GenerationRequest, TextPrompt
from gateway.turns.events import Event, Finished, OutputRound
from gateway.turns.generation import Generator
from specdec.sampling.params import SamplingParams
from tests.support.gateway_fakes import (
    ByteTokenizer,
    ScriptedVerifier,
)
from tests.unit.gateway.turns.in_memory import services


class Stage:
    """A generator and its dependencies."""

    def __init__(self, *verifiers: ScriptedVerifier, **settings: Any) -> None:
        self.verifiers = verifiers or (ScriptedVerifier(),)
        self.services = services(*self.verifiers, **settings)
        self.store, self.metrics = self.services.sessions, self.services.metrics
        self.pool, self.drain = self.services.models.first.pool, self.services.drain
        self.generator = Generator(self.services)

    async def stream(self, timeout: float | None = None, **request: Any) -> AsyncGenerator[Event]:
        await self.pool.probe()
        async with aclosing(self.generator.stream(ask(**request), timeout)) as events:
            async for event in events:
                yield event

    @property
    def committed_text(self) -> str:
        """Return the text of the only turn's committed output."""
        return ByteTokenizer().decode(self.store.only.tokens[self.store.only.base :])

    async def run(self, **request: Any) -> list[Event]:
        return [event async for event in self.stream(**request)]


def ask(**changes: Any) -> GenerationRequest:
    values: dict[str, Any] = {"prompt": TextPrompt("Say it"), "sampling": SamplingParams(seed=7)}
    return GenerationRequest(**(values | changes))


def text_of(events: Sequence[Event]) -> str:
    return "".join(event.text for event in events if isinstance(event, OutputRound))


def ids_of(events: Sequence[Event]) -> list[int]:
    return [token.id for event in events if isinstance(event, OutputRound) for token in event.tokens]


def end_of(events: Sequence[Event]) -> Finished:
    last = events[-1]
    assert isinstance(last, Finished)
    return last
