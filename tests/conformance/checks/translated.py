"""Checks of the law of services whose drafter has a different tokenizer than their target."""

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from specdec.protos.common.v1 import common_pb2 as common
from specdec.rules.speculation import Mode
from tests.conformance.checks.check import Check
from tests.conformance.checks.served import Served, Workload, law_check
from tests.conformance.g_test import Law
from tests.conformance.served_pair import running_drafter, running_verifier
from tests.conformance.small_pair import VOCAB_SIZE, small
from tests.integration.verifier.client import Client


class Translated(Workload):
    """Sessions drafted by a drafter with a foreign tokenizer. Its q̂ may contain every shared token."""

    def _value(self, served: Served, law: Law) -> float:
        """Return the p-value of the workload, or 0 unless drafts were judged with some accepted and some rejected."""
        origins = Counter(origin for each in served.values() for round in each.rounds for origin in round.origins)
        judged = min(origins[common.TOKEN_ORIGIN_ACCEPTED], origins[common.TOKEN_ORIGIN_RECOVERED])
        return super()._value(served, law) if judged > len(served) / 40 else 0.0

    @asynccontextmanager
    async def _services(self) -> AsyncIterator[Client]:
        async with (
            running_drafter(small().stranger, support=VOCAB_SIZE, ahead=self.ahead) as drafter,
            running_verifier(small().target, drafter.address, drafter_vocabulary="translate") as client,
        ):
            yield client


def _law(mode: Mode, sessions: int) -> Check:
    return law_check(f"translated {mode}", Translated(mode, sessions, gammas=(3,), length=2))


CHECKS = (_law(Mode.REJECTION, 1300), _law(Mode.BLOCK, 400), _law(Mode.COUPLED, 400))
