"""Checks of models that have no distribution after some tokens.

The failing model's logits are NaN after token 1. A draft must not be dropped because of its own token: a draft of 1
that is dropped for this reason shows in the law.
"""

from collections.abc import Sequence

import torch
from prometheus_client import CollectorRegistry
from torch import Tensor

from drafter_service.config import DrafterSettings
from drafter_service.drafters.model_drafter import ModelDrafter
from drafter_service.metrics import DrafterMetrics
from drafter_service.sessions.draft_runner import DraftRunner
from specdec.engine import Chunk
from specdec.errors import NoDistribution
from specdec.rules import proposal, verification
from specdec.rules.draft import NO_DRAFT, Draft, Verdict
from specdec.rules.speculation import Mode, Speculation
from specdec.sampling.params import SamplingParams
from specdec.serving.settings import ModelSettings
from specdec.wire.generation import GenerationCall
from specdec.wire.session import Open
from tests.conformance.checks.check import Check, Kind, in_parts
from tests.conformance.g_test import g_test
from tests.conformance.model_folders import root
from tests.conformance.table_models import Context
from tests.support.drafter_fakes import ListStream, PrefixModel
from verifier_service.backends import target_pass
from verifier_service.backends.batch_plan import Row, ScheduledChunk

P_VALUE = 1e-6
SESSIONS = 400
GAMMA = 2
PROMPT = (0, 0)
P, Q = torch.tensor([0.5, 0.5]), torch.tensor([0.4, 0.6])
FAILED = 2
"""Placeholder in an output for the error after token 1."""


class Failing(PrefixModel):
    """A model with one distribution after every sequence, and none after sequences that end with 1."""

    vocab_size = 2

    def __init__(self, law: Tensor) -> None:
        super().__init__(tokens=10**6)
        self._logits = law.log()

    def forward(self, chunks: Sequence[Chunk]) -> Tensor:
        rows = []
        for chunk in chunks:
            self.kv[chunk.session] += chunk.tokens
            self.reserve(chunk.session, len(self.kv[chunk.session]))
            for token in chunk.tokens[len(chunk.tokens) - chunk.logits :]:
                rows.append(self._logits * torch.nan if token else self._logits)
        return torch.stack(rows) if rows else torch.empty(0, 2)


def failing_drafter() -> float:
    """Return the p-value of the first tokens of sessions whose drafter fails after token 1."""
    drafts, p = _drafts_of_a_failing_drafter(), P[None].double()
    outputs = []
    for seed in range(SESSIONS):
        draft = drafts.get(str(seed), NO_DRAFT)
        (verdict,) = verification.verify(
            Mode.REJECTION, p.repeat(len(draft.tokens) + 1, 1), [draft], [seed], [len(PROMPT)]
        )
        outputs.append(verdict.tokens[:1])
    return g_test(outputs, P.double(), 2)


def _drafts_of_a_failing_drafter() -> dict[str, Draft]:
    """Return the draft that each session receives before the end of its draft or its refusal."""
    room = {"max_sessions": SESSIONS, "max_sessions_per_verifier": SESSIONS}
    settings = DrafterSettings(model=ModelSettings(path=root()), chunk_tokens=10**6, ahead=0, **room)
    runner = DraftRunner(ModelDrafter("d", Failing(Q), 8), settings, DrafterMetrics(CollectorRegistry()))
    stream, limit = ListStream(), len(PROMPT) + GAMMA + 1
    runner.take(
        stream,
        [
            Open(str(seed), 1, PROMPT, len(PROMPT), SamplingParams(seed=seed), Mode.REJECTION, GAMMA, limit)
            for seed in range(SESSIONS)
        ],
    )
    while runner.step():
        pass
    runner.send()
    refused = {nack.session_id for nack in stream.nacks}
    return {each.session_id: each.draft for each in stream.drafts if each.session_id not in refused}


def failing_target(name: str, mode: Mode) -> Check:
    """Return a check of the law of two-token outputs for a target that fails after token 1."""
    law = torch.zeros(3, 3, dtype=torch.float64)
    law[1, FAILED] = P[1]
    law[0, :FAILED] = P[0] * P

    def sample(seeds: range) -> list[Context]:
        return [_output(mode, seed) for seed in seeds]

    def value(outputs: Sequence[Context]) -> float:
        return g_test(outputs, law.flatten(), 3)

    look = in_parts(SESSIONS, sample, value)
    return Check(name, Kind.P_VALUE, P_VALUE, lambda: value(sample(range(SESSIONS))), look)


def _output(mode: Mode, seed: int) -> Context:
    engine, output = Failing(P), Context()
    engine.admit("s", 64)
    while len(output) < 2:
        result = _round(engine, mode, seed, PROMPT + output)
        if not isinstance(result, Verdict):
            assert isinstance(result, NoDistribution)
            return (*output, FAILED)
        output += result.tokens
    return output[:2]


def _round(engine: Failing, mode: Mode, seed: int, tokens: Context) -> target_pass.Result:
    drawn, probs = proposal.propose(mode, Q[None], [seed], [len(tokens)], 8, [len(tokens)])
    call = GenerationCall(
        tokens=PROMPT,
        prompt_len=len(PROMPT),
        sampling=SamplingParams(seed=seed),
        max_tokens=8,
        stop_token_ids=(),
        speculation=Speculation(mode),
    )
    row = Row(call, "s", 0.0, 64, tokens, len(tokens), Draft(tuple(drawn), tuple(probs)))
    start = engine.length("s")
    return target_pass.verify_batch(engine, [ScheduledChunk(row, start, len(tokens) - start)])[0]


CHECKS: tuple[Check, ...] = (
    Check("drafts of a failing drafter", Kind.P_VALUE, P_VALUE, failing_drafter),
    failing_target("failing target, rejection", Mode.REJECTION),
    failing_target("failing target, block", Mode.BLOCK),
    failing_target("failing target, coupled", Mode.COUPLED),
)
