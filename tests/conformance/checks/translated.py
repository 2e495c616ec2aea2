"""Checks of the law that services give whose drafter has another tokenizer than their target."""

from collections import Counter
from collections.abc import Sequence

from protos.common.v1 import common_pb2 as common
from specdec.rules.params import Mode
from tests.conformance.checks.check import Check, Kind
from tests.conformance.checks.served import AT_ONCE, P_VALUE, Workload
from tests.conformance.g_test import p_value
from tests.conformance.served_pair import Ask, Done, generate, running_drafter, running_verifier
from tests.conformance.small_pair import VOCAB_SIZE, small


class Translated(Workload):
    """Sessions for which a stranger drafts, whose q̂ may have every token that is shared."""

    def p_value(self) -> float:
        """As of any workload; 0 when its drafts were not judged, of which some are kept and some are not."""
        done = self.run()
        origins = Counter(origin for each in done for response in each.rounds for origin in response.origins)
        judged = min(origins[common.TOKEN_ORIGIN_ACCEPTED], origins[common.TOKEN_ORIGIN_RECOVERED])
        return p_value([each.tokens for each in done], self._law()) if judged > self.sessions / 40 else 0.0

    async def _served(self, asks: Sequence[Ask]) -> list[Done]:
        async with (
            running_drafter(small().stranger, support=VOCAB_SIZE, ahead=self.ahead) as drafter,
            running_verifier(small().target, drafter.address, drafter_vocabulary="translate") as client,
        ):
            return await generate(client, asks, AT_ONCE)


def _law(mode: Mode, sessions: int) -> Check:
    workload = Translated(mode, sessions, gammas=(3,), length=2)
    return Check(f"translated {mode}", Kind.P_VALUE, P_VALUE, workload.p_value, crosses_a_border=True)


CHECKS = (_law(Mode.REJECTION, 1300), _law(Mode.BLOCK, 400), _law(Mode.COUPLED, 400))
