"""The parts of both services that handle drafts, connected by random events instead of gRPC.

The drafter's `DraftSession` and `Outcomes`, the verifier's link, `DraftBuffer` and budget, `propose` and `verify` are
the real ones. Drafts arrive late or in parts, wait during a pause, are cut by the budget of the pass, and are lost with
their drafter. With pushed chains, chunks sent by a lost drafter may arrive again in the next epoch. The random events
do not depend on any token, so the law of the output must be the target's.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import cycle

from prometheus_client import CollectorRegistry

from drafter_service.drafters.model_drafter import alternatives
from drafter_service.drafters.sequence_lengths import SequenceLengths
from drafter_service.sessions.draft_session import DraftSession
from drafter_service.sessions.outcomes import Outcomes
from specdec.planning.certainty import certainties
from specdec.planning.gamma_policy import AUTO, GammaPolicy
from specdec.rules import proposal, verification
from specdec.rules.draft import NO_DRAFT, Draft, Verdict
from specdec.rules.speculation import Mode
from specdec.sampling.distribution import History
from specdec.sampling.params import SamplingParams
from specdec.wire.draft import DraftTokens
from specdec.wire.session import Commit, NackReason, Open
from tests.conformance.g_test import g_test
from tests.conformance.sampled_chain import PROMPT, Rows
from tests.conformance.table_models import Context, TableModel, joint
from verifier_service.backends.batch_plan import level
from verifier_service.drafts.draft_buffer import DraftBuffer
from verifier_service.drafts.link import DrafterLink
from verifier_service.metrics import VerifierMetrics

STEPS = 6
"""Draft steps between two passes of the target."""
AHEAD = 2
SUPPORT = 2
MOST = 128
"""Largest number of drafts in a buffer."""
LIMIT = len(PROMPT) + 2 * MOST
"""Largest length of a sequence."""


@dataclass(frozen=True)
class Chances:
    """Probabilities of the random events of a simulation."""

    gammas: tuple[int, ...] = (0, 1, 2, 3, 3)
    """Draft lengths, all equally likely. 0 is a pause."""
    drafts: float = 0.75
    """Probability that a session takes part in a draft step."""
    sends: float = 0.4
    """Probability, after each step, that the drafted tokens are sent."""
    arrives: float = 0.7
    """Probability that a sent chunk arrives before the pass."""
    lost: float = 0.05
    """Probability, after each verdict, that the drafter is lost."""
    budget: float = 0.8
    """Budget of a pass, as a share of the drafts of all sessions. It does not depend on the tokens."""

    late: bool = False
    """Whether drafts for a round arrive after its verdict, so that only pushed chains are in time."""
    batch: tuple[int, ...] = ()
    """Sizes of the batches that are judged together, in rotation. If empty, all sessions are judged at once."""


CALM = Chances(gammas=(3,), drafts=1.0, sends=1.0, arrives=1.0, lost=0.0, budget=1.0)
"""Every draft is whole and in time."""


@dataclass(eq=False)
class Generation:
    """One sequence as both services know it. It is the Listener of the link between them."""

    seed: int
    buffer: DraftBuffer
    epoch: int = 1
    session: DraftSession | None = None
    """The session at the drafter, or None if it is not open there."""
    in_flight: list[DraftTokens] = field(default_factory=list)
    sent: list[DraftTokens] = field(default_factory=list)
    """All chunks of the current epoch."""
    stale: list[DraftTokens] = field(default_factory=list)
    """All chunks of the previous epoch."""
    unsent: Context = ()
    """Committed tokens not yet sent to the drafter."""
    gamma: int = 0
    draft: Draft = NO_DRAFT

    @property
    def output(self) -> Context:
        """Return the committed tokens after the prompt."""
        return self.buffer.committed[len(PROMPT) :]

    def leave(self) -> None:
        """Continue without the drafter and its drafts."""
        self.session, self.in_flight, self.unsent = None, [], ()
        self.epoch, self.sent, self.stale = self.epoch + 1, [], self.sent
        self.buffer.clear()

    def drafted(self, chunk: DraftTokens) -> None:
        self.buffer.add(chunk)

    def ended(self, length: int) -> None: ...

    def refused(self, reason: NackReason) -> None: ...

    def lost(self) -> None: ...


@dataclass(frozen=True)
class Simulation:
    """A target, a drafter and the mode between them."""

    mode: Mode
    params: SamplingParams
    target: TableModel
    drafter: TableModel
    chances: Chances = Chances()
    policy: GammaPolicy = AUTO
    """The policy that ends chains early."""
    outcomes: int = 0
    """Number of outcomes of a verdict for which chains are pushed."""

    def p_value(self, outputs: Sequence[Context], length: int) -> float:
        """Return the p-value of a G-test of the joint sequences."""
        law = joint(self.target, self.params, PROMPT, length)
        return g_test(outputs, law, self.target.vocab_size)

    def generate(self, sessions: int, length: int, first_seed: int = 0) -> list[Context]:
        """Return the first `length` tokens of sessions with consecutive seeds."""
        dice, chances = random.Random(first_seed + 1), self.chances
        rows = Rows(self.target, self.params, PROMPT), Rows(self.drafter, self.params, PROMPT)
        generations = [Generation(seed, DraftBuffer(PROMPT, MOST)) for seed in range(first_seed, first_seed + sessions)]
        link = DrafterLink("d:1", 1.0, VerifierMetrics(CollectorRegistry()))
        pushed = Outcomes(SequenceLengths(), self.outcomes)
        while running := [each for each in generations if len(each.output) < length]:
            for each in running:
                self._order(each, dice.choice(chances.gammas), link, pushed)
            verdicts = self._judge(running, rows[0]) if chances.late else []
            for _ in range(STEPS):
                self._draft([each for each in running if dice.random() < chances.drafts], rows[1], pushed)
                _send([each for each in running if dice.random() < chances.sends], pushed)
            _deliver(running, link, dice, chances.arrives)
            verdicts = verdicts or self._judge(running, rows[0])
            for each, verdict in zip(running, verdicts, strict=True):
                _commit(each, verdict, lost=dice.random() < chances.lost)
        return [each.output[:length] for each in generations]

    def _order(self, each: Generation, gamma: int, link: DrafterLink, pushed: Outcomes) -> None:
        """Open the session at the drafter, or send it the committed tokens. In a pause, send nothing."""
        each.gamma = gamma
        if not gamma:
            return
        name, committed = str(each.seed), each.buffer.committed
        if each.session is None:
            params = replace(self.params, seed=each.seed)
            opened = Open(
                name, each.epoch, committed, len(PROMPT), params, self.mode, gamma, LIMIT,
                policy=self.policy, outcomes=self.outcomes,
            )  # fmt: skip
            each.session = DraftSession(f"{name}/{each.epoch}", opened, LIMIT)
            each.session.admitted = pushed._sequences.admit(each.session.key, LIMIT)
            link.open(opened, each)
        elif each.unsent:
            each.session.commit(Commit(name, each.epoch, len(committed) - len(each.unsent), each.unsent, gamma))
            pushed.settle(each.session)
        each.unsent = ()

    def _draft(self, chosen: Sequence[Generation], rows: Rows, pushed: Outcomes) -> None:
        """Draft one token for each session that wants one, and for each of their outcomes that wants one."""
        known = [each.session for each in chosen if each.session]
        known += [outcome for session in list(known) for outcome in pushed.prepare(session)]
        wanting = [session for session in known if session.wants_draft(AHEAD)]
        if not wanting:
            return
        contexts = [tuple(session.tokens_from(len(PROMPT))) for session in wanting]
        q = rows.of([(context, context) for context in contexts])
        tokens, probs = proposal.propose(
            self.mode,
            q,
            [session.params.seed for session in wanting],
            [len(session) for session in wanting],
            SUPPORT,
            [session.chain_start for session in wanting],
        )
        sure = certainties(q, tokens)
        others = alternatives(q.log(), wanting, tokens, lambda _: History())
        for index, session in enumerate(wanting):
            session.extend(tokens[index], probs[index] if probs else None, sure[index], others.get(index, ()))

    def _judge(self, running: Sequence[Generation], rows: Rows) -> list[Verdict]:
        """Return the verdicts of one pass, whose budget cuts the longest drafts of all sessions."""
        drafts = [each.buffer.take(each.gamma) for each in running]
        wanted = [len(draft.tokens) for draft in drafts]
        most = level(wanted, int(self.chances.budget * sum(wanted)))
        for each, draft in zip(running, drafts, strict=True):
            each.draft = draft.cut(most)
        sizes, left = cycle(self.chances.batch or (len(running),)), list(running)
        verdicts: list[Verdict] = []
        while left:
            size = next(sizes)
            verdicts += self._verdicts(left[:size], rows)
            del left[:size]
        return verdicts

    def _verdicts(self, batch: Sequence[Generation], rows: Rows) -> list[Verdict]:
        contexts = [
            each.output + each.draft.tokens[:step] for each in batch for step in range(len(each.draft.tokens) + 1)
        ]
        return verification.verify(
            self.mode,
            rows.of([(context, context) for context in contexts]),
            [each.draft for each in batch],
            [each.seed for each in batch],
            [each.buffer.committed_len for each in batch],
        )


def _send(chosen: Sequence[Generation], pushed: Outcomes) -> None:
    for each in chosen:
        outcomes = pushed.prepare(each.session) if each.session else []
        whole = [outcome for outcome in outcomes if outcome.is_due(AHEAD)]
        for session in (each.session, *whole) if each.session else ():
            chunk = session.take_unsent()
            if chunk is not None:
                each.in_flight.append(chunk)
                each.sent.append(chunk)


def _deliver(running: Sequence[Generation], link: DrafterLink, dice: random.Random, chance: float) -> None:
    """Deliver chunks in order. A chunk that does not arrive now may arrive after the verdict."""
    for each in running:
        while each.in_flight and dice.random() < chance:
            link.drafted(each.in_flight.pop(0))
        for chunk in each.stale if each.session and each.session.outcomes else ():
            link.drafted(chunk)


def _commit(each: Generation, verdict: Verdict, *, lost: bool) -> None:
    in_step = each.buffer.advance(verdict.tokens, verdict.drafted)
    each.unsent += verdict.tokens
    if lost or not in_step:
        each.leave()
