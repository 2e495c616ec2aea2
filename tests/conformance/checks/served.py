"""Checks of what the running services answer: a real drafter and a real verifier, with gRPC between them."""

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

from specdec.params import Mode, SamplingParams
from specdec.wire.tokens import tokens_from_bytes
from tests.conformance.checks.value import Check, Kind, count
from tests.conformance.g_test import p_value
from tests.conformance.law import PlainModel
from tests.conformance.served import Ask, Done, generate, pair
from tests.conformance.small import END, PROMPT, small

P_VALUE = 1e-6
LENGTH = 4
AT_ONCE = 128
AHEAD = 2
SUPPORT = 2
PLAIN = SamplingParams()
PENALTIES = SamplingParams(presence_penalty=2.0, frequency_penalty=1.0)


@dataclass(frozen=True)
class Workload:
    """Sessions of one law."""

    mode: Mode
    sessions: int
    params: SamplingParams = PLAIN
    gammas: tuple[int, ...] = (1, 2, 3)
    length: int = LENGTH
    support: int = SUPPORT

    def run(self) -> list[Done]:
        """Serve them, shuffled, at once."""
        asks = [
            Ask(
                self.mode,
                replace(self.params, seed=number),
                self.gammas[number % len(self.gammas)],
                PROMPT,
                self.length,
                (END,),
            )
            for number in range(self.sessions)
        ]
        random.Random(1).shuffle(asks)

        async def served() -> list[Done]:
            async with pair(small().target, small().drafter, support=self.support, ahead=AHEAD) as client:
                return await generate(client, asks, AT_ONCE)

        return asyncio.run(served())

    def p_value(self) -> float:
        """Of a G-test of the joint sequences."""
        law = small().plain.law(self.params, PROMPT, self.length, END)
        return p_value([done.tokens for done in self.run()], law)


def overshooting_rounds() -> float:
    """Rounds drafted past the room left."""
    limit = len(PROMPT) + 6
    rounds = [each for done in Workload(Mode.REJECTION, 60, gammas=(8,), length=6).run() for each in done.rounds]
    return sum(each.base_len + len(each.draft_tokens) // 4 >= limit for each in rounds)


def strayed_drafts() -> float:
    """Draft tokens that are not what the drafter's model says after the very tokens before them.

    With one candidate a coupled drafter proposes its argmax, whatever the noise.
    """
    plain = PlainModel(small().drafter)
    found = 0
    for done in Workload(Mode.COUPLED, 100, gammas=(3, 2), length=12, support=1).run():
        for each in done.rounds:
            committed = PROMPT + done.tokens[: each.base_len - len(PROMPT)]
            found += _strayed(plain, committed, tokens_from_bytes(each.draft_tokens))
    return found


def _strayed(plain: PlainModel, committed: tuple[int, ...], draft: Sequence[int]) -> int:
    strayed = 0
    for token in draft:
        strayed += int(plain.logits([committed]).argmax()) != token
        committed += (token,)
    return strayed


def _law(name: str, workload: Workload) -> Check:
    return Check(name, Kind.P_VALUE, P_VALUE, workload.p_value, crosses_a_border=True)


CHECKS: tuple[Check, ...] = (
    _law("served rejection", Workload(Mode.REJECTION, 700)),
    _law("served rejection, γ = 1", Workload(Mode.REJECTION, 1_000, gammas=(1,))),
    _law("served block", Workload(Mode.BLOCK, 700)),
    _law("served coupling", Workload(Mode.COUPLED, 500)),
    _law("served penalties", Workload(Mode.REJECTION, 700, PENALTIES, gammas=(1, 2))),
    _law("served min-p", Workload(Mode.REJECTION, 500, SamplingParams(min_p=0.3))),
    count("room of the last round", overshooting_rounds, crosses_a_border=True),
    count("drafts follow their prefix", strayed_drafts, crosses_a_border=True),
)
