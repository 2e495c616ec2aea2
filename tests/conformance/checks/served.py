"""Checks of the law that the running services give: a real drafter and a real verifier, with gRPC between them."""

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import grpc.aio
import torch

from specdec.rules.params import Mode, SamplingParams
from specdec.wire.logprobs import logprobs_from_pb
from specdec.wire.tokens import tokens_from_bytes
from tests.conformance.automata import LOOP
from tests.conformance.checks.check import Check, Kind
from tests.conformance.g_test import Law, p_value
from tests.conformance.lenient_law import Rounds
from tests.conformance.served_pair import Ask, Done, generate, pair
from tests.conformance.small_pair import END, PROMPT, REPETITIVE, small
from tests.conformance.table_models import Context

P_VALUE = 1e-6
LENGTH = 4
AT_ONCE = 256
AHEAD = 2
SUPPORT = 2
LENIENCE = 0.3
PLAIN = SamplingParams()
PENALTIES = SamplingParams(presence_penalty=2.0, frequency_penalty=1.0)
ALLOWED = SamplingParams(allowed_token_ids=(0, 1, 3, 5))
GRAMMAR = SamplingParams(grammar=LOOP)
FILTERED = SamplingParams(temperature=0.7, top_k=4)
TOP = 3
ROUNDING = 1e-4
"""What float32 may take from a log probability."""


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
    """Whether the prompt itself drafts, and no model."""
    leniences: tuple[float | None, ...] = (None,)
    logprobs: int | None = None

    def run(self) -> list[Done]:
        """Serve them, shuffled, at once; the answers come in order of the seeds."""
        order = list(range(self.sessions))
        random.Random(1).shuffle(order)
        done = asyncio.run(self._served([self._ask(number) for number in order]))
        return [each for _, each in sorted(zip(order, done, strict=True), key=lambda both: both[0])]

    def p_value(self) -> float:
        """Of a G-test of the joint sequences; where some are lenient, of the first kind alone."""
        return p_value([done.tokens for done in self.run()[:: len(self.leniences)]], self._law())

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

    async def _served(self, asks: Sequence[Ask]) -> list[Done]:
        drafting: dict[str, Any] = {"support": self.support, "ahead": self.ahead}
        if self.lookup:
            drafting["kind"] = "prompt_lookup"
        async with pair(small().target, small().drafter, **drafting) as client:
            return await generate(client, asks, AT_ONCE)

    def _law(self) -> Law:
        if self.leniences[0] is None:
            return small().plain.law(self.params, self.prompt, self.length, END)
        (gamma,) = self.gammas
        rounds = Rounds(small().plain, small().plain_drafter, self.params, self.support, gamma, self.leniences[0])
        return rounds.law(self.prompt, self.length, END)


def wrong_logprobs() -> float:
    """Largest difference of a log probability, of a committed token or a likely one, from the target's own."""
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


def grammar_law() -> float:
    """As `Workload.p_value`; a generation that fails, because its output has left the grammar, is no sample at all."""
    try:
        return Workload(Mode.REJECTION, 300, GRAMMAR).p_value()
    except* grpc.aio.AioRpcError:
        pass
    return 0.0


def _law(name: str, workload: Workload) -> Check:
    return Check(name, Kind.P_VALUE, P_VALUE, workload.p_value, crosses_a_border=True)


CHECKS: tuple[Check, ...] = (
    _law("served rejection", Workload(Mode.REJECTION, 450)),
    _law("served rejection, γ = 1", Workload(Mode.REJECTION, 600, gammas=(1,))),
    _law("served block", Workload(Mode.BLOCK, 350)),
    _law("served coupling", Workload(Mode.COUPLED, 500)),
    _law("served penalties", Workload(Mode.REJECTION, 700, PENALTIES, gammas=(1, 2))),
    _law("served min-p", Workload(Mode.REJECTION, 200, SamplingParams(min_p=0.3))),
    _law("served allowed ids", Workload(Mode.REJECTION, 120, ALLOWED, gammas=(1, 2))),
    Check("served grammar", Kind.P_VALUE, P_VALUE, grammar_law, crosses_a_border=True),
    _law("served prompt lookup", Workload(Mode.REJECTION, 500, prompt=REPETITIVE, lookup=True)),
    _law("served prompt lookup in blocks", Workload(Mode.BLOCK, 200, prompt=REPETITIVE, lookup=True)),
    _law("served lenience (lossy)", Workload(Mode.REJECTION, 200, gammas=(2,), leniences=(LENIENCE,))),
    _law("served beside lenience", Workload(Mode.REJECTION, 300, gammas=(2,), leniences=(None, LENIENCE))),
    Check("served logprobs", Kind.ERROR, ROUNDING, wrong_logprobs, crosses_a_border=True),
)
