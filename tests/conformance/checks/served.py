"""Checks of the law that the running services produce: a real drafter and a real verifier, connected by gRPC."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

import grpc.aio
import torch

from specdec.rules.speculation import Mode
from specdec.sampling.params import SamplingParams
from specdec.wire.logprobs import logprobs_from_pb
from specdec.wire.tokens import tokens_from_bytes
from tests.conformance.automata import BUDGET, LOOP
from tests.conformance.checks.check import Check, Enough, Kind, parts
from tests.conformance.g_test import Law, p_value
from tests.conformance.lenient_law import Rounds
from tests.conformance.served_pair import Ask, Done, generate, pair
from tests.conformance.small_pair import END, PROMPT, REPETITIVE, small
from tests.conformance.table_models import Context
from tests.integration.verifier.client import Client

P_VALUE = 1e-6
LENGTH = 4
AT_ONCE = 256
AHEAD = 2
SUPPORT = 2
LENIENCE = 0.3
PLAIN = SamplingParams()
PENALTIES = SamplingParams(presence_penalty=2.0, frequency_penalty=1.0)
BAD_WORDS = SamplingParams(bad_words=((1, 3), (2, 2), (6, 1, 5), (7,)))
ALLOWED = SamplingParams(allowed_token_ids=(0, 1, 3, 5))
GRAMMAR = SamplingParams(grammar=LOOP)
BOUND = SamplingParams(grammar=BUDGET)
FILTERED = SamplingParams(temperature=0.7, top_k=4)
TOP = 3
ROUNDING = 1e-4
"""Largest float32 rounding error of a log probability."""

GUESSED: Any = {"prompt": REPETITIVE, "gammas": (3,), "support": 8, "local": ("prompt_lookup",)}
"""A drafter that confirms guesses of prompt lookup."""

Served = dict[int, Done]
"""The answers, keyed by the number of the session, which is its seed."""


@dataclass(frozen=True)
class Workload:
    """Sessions of one law."""

    mode: Mode
    sessions: int
    params: SamplingParams = PLAIN
    gammas: tuple[int, ...] = (1, 2, 3)
    length: int = LENGTH
    support: int = SUPPORT
    ahead: int = AHEAD
    prompt: Context = PROMPT
    lookup: bool = False
    """Whether drafts come from prompt lookup instead of a model."""
    local: tuple[str, ...] = ()
    """Sources that guess the drafts of the model."""
    leniences: tuple[float | None, ...] = (None,)
    logprobs: int | None = None

    def run(self) -> list[Done]:
        """Serve all sessions concurrently in shuffled order, and return the answers in order of the seeds."""
        served = asyncio.run(self._served([self._order()]))
        return [served[number] for number in sorted(served)]

    def p_value(self) -> float:
        """Return the p-value of a G-test of the joint sequences. With lenient sessions, test the first kind only."""
        return self._value(dict(enumerate(self.run())), self._law())

    def look(self, enough: Enough) -> float:
        """Like `p_value`, but cumulative by parts, until a number is enough."""
        law, order, found = self._law(), self._order(), 0.0

        def seen(served: Served) -> bool:
            nonlocal found
            found = self._value(served, law)
            return enough(found)

        asyncio.run(self._served([order[part.start : part.stop] for part in parts(self.sessions)], seen))
        return found

    def _order(self) -> list[int]:
        order = list(range(self.sessions))
        random.Random(1).shuffle(order)
        return order

    def _value(self, served: Served, law: Law) -> float:
        first_kind = [done.tokens for number, done in served.items() if number % len(self.leniences) == 0]
        return p_value(first_kind, law)

    def _ask(self, number: int) -> Ask:
        return Ask(
            self.mode,
            replace(self.params, seed=number),
            self.gammas[number % len(self.gammas)],
            self.prompt,
            self.length,
            (END,),
            lenience=self.leniences[number % len(self.leniences)],
            logprobs=self.logprobs,
        )

    async def _served(
        self, groups: Sequence[Sequence[int]], seen: Callable[[Served], bool] = lambda served: False
    ) -> Served:
        """Serve one group of sessions after another until `enough` holds."""
        served: Served = {}
        async with self._services() as client:
            for group in groups:
                answers = await generate(client, [self._ask(number) for number in group], AT_ONCE)
                served |= zip(group, answers, strict=True)
                if seen(served):
                    break
        return served

    @asynccontextmanager
    async def _services(self) -> AsyncIterator[Client]:
        drafting: dict[str, Any] = {"support": self.support, "ahead": self.ahead}
        if self.lookup:
            drafting["kind"] = "prompt_lookup"
        if self.local:
            drafting["local"] = self.local
        async with pair(small().target, small().drafter, **drafting) as client:
            yield client

    def _law(self) -> Law:
        if self.leniences[0] is None:
            return small().plain.law(self.params, self.prompt, self.length, END)
        (gamma,) = self.gammas
        rounds = Rounds(small().plain, small().plain_drafter, self.params, self.support, gamma, self.leniences[0])
        return rounds.law(self.prompt, self.length, END)


def wrong_logprobs() -> float:
    """Return the largest difference from the target's log probability, over committed tokens and likely ones."""
    worst = 0.0
    for done in Workload(Mode.REJECTION, 40, FILTERED, logprobs=TOP).run():
        for each in done.rounds:
            committed = PROMPT + done.tokens[: each.base_len - len(PROMPT)]
            scores = logprobs_from_pb(each.logprobs)
            for token, score in zip(tokens_from_bytes(each.tokens), scores, strict=True):
                expected = small().plain.logits([committed])[0].log_softmax(-1)
                found = torch.tensor([score.logprob, *(logprob for _, logprob in score.top)], dtype=torch.float64)
                wanted = torch.cat([expected[token][None], expected.topk(TOP).values])
                worst = max(worst, float((found - wanted).abs().max()))
                committed += (token,)
    return worst


def _or_zero(p_value: Callable[[], float]) -> float:
    """Return the p-value, or 0 if a generation fails because its output has left the grammar."""
    try:
        return p_value()
    except* grpc.aio.AioRpcError:
        pass
    return 0.0


def law_check(name: str, workload: Workload) -> Check:
    """Return a check of the law that a workload is served with."""
    return Check(name, Kind.P_VALUE, P_VALUE, workload.p_value, workload.look, crosses_a_border=True)


def _grammar(name: str, workload: Workload) -> Check:
    whole = law_check(name, workload)
    return replace(
        whole,
        measure=lambda: _or_zero(workload.p_value),
        look=lambda enough: _or_zero(lambda: workload.look(enough)),
    )


CHECKS: tuple[Check, ...] = (
    law_check("served rejection", Workload(Mode.REJECTION, 450)),
    law_check("served rejection, γ = 1", Workload(Mode.REJECTION, 600, gammas=(1,))),
    law_check("served block", Workload(Mode.BLOCK, 350)),
    law_check("served coupling", Workload(Mode.COUPLED, 500)),
    law_check("served penalties", Workload(Mode.REJECTION, 700, PENALTIES, gammas=(1, 2))),
    law_check("served bad words", Workload(Mode.REJECTION, 400, BAD_WORDS, gammas=(2,))),
    law_check("served min-p", Workload(Mode.REJECTION, 200, SamplingParams(min_p=0.3))),
    law_check("served allowed ids", Workload(Mode.REJECTION, 120, ALLOWED, gammas=(1, 2))),
    _grammar("served grammar", Workload(Mode.REJECTION, 300, GRAMMAR)),
    _grammar("served budget", Workload(Mode.REJECTION, 300, BOUND, length=5)),
    law_check("served prompt lookup", Workload(Mode.REJECTION, 500, prompt=REPETITIVE, lookup=True)),
    law_check("served prompt lookup in blocks", Workload(Mode.BLOCK, 200, prompt=REPETITIVE, lookup=True)),
    law_check("served guesses", Workload(Mode.REJECTION, 500, **GUESSED)),
    law_check("served guesses in blocks", Workload(Mode.BLOCK, 300, **GUESSED)),
    law_check("served lenience (lossy)", Workload(Mode.REJECTION, 200, gammas=(2,), leniences=(LENIENCE,))),
    law_check("served beside lenience", Workload(Mode.REJECTION, 300, gammas=(2,), leniences=(None, LENIENCE))),
    Check("served logprobs", Kind.ERROR, ROUNDING, wrong_logprobs, crosses_a_border=True),
)
