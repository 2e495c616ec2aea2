"""Many short generations by the real `propose` and `verify`, and the G-test of their joint law."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from specdec.rules import proposal, verification
from specdec.rules.draft import NO_DRAFT, Draft, Verdict
from specdec.rules.speculation import Mode
from specdec.sampling import distribution as sampling
from specdec.sampling.distribution import History
from specdec.sampling.params import SamplingParams
from tests.conformance.table_models import Context, TableModel

PROMPT = (0, 1)


class Rows:
    """Distributions of one model by context, each computed once by the real `probabilities`."""

    def __init__(self, model: TableModel, params: SamplingParams, prompt: Context) -> None:
        self._model = model
        self._params = params
        self._prompt = prompt
        self._index: dict[tuple[Context, Context], int] = {}
        self._rows: list[Tensor] = []

    def of(self, contexts: Sequence[tuple[Context, Context]]) -> Tensor:
        """Return float32 [N, V] for pairs of (output so far, the part of it that penalties see)."""
        return torch.stack([self._rows[self._number(context)] for context in contexts])

    def _number(self, context: tuple[Context, Context]) -> int:
        if context not in self._index:
            output, seen = context
            logits = self._model.logits(self._prompt + output).float()[None]
            self._index[context] = len(self._rows)
            self._rows.append(sampling.probabilities(logits, [self._params], [History(self._prompt, seen)])[0])
        return self._index[context]


@dataclass(frozen=True)
class Service:
    """A target, a drafter and the mode between them. The last two flags plant mistakes that a caller could make."""

    mode: Mode
    params: SamplingParams
    target: TableModel
    drafter: TableModel
    prompt: Context = PROMPT
    support: int = 2
    gammas: tuple[int, ...] = (3, 1, 2, 0, 3)
    """Draft lengths by session and round. Every batch is ragged, and any fixed choice is allowed."""
    ahead: int = 1
    """Tokens drafted beyond γ. They are used if the bonus token matches their first one."""
    penalties_see_drafts: bool = True
    chain_starts: bool = True

    def generate(self, sessions: int, length: int, first_seed: int = 0) -> list[Context]:
        """Return the first `length` tokens of sessions with consecutive seeds, over as many rounds as needed."""
        p_rows, q_rows = (Rows(model, self.params, self.prompt) for model in (self.target, self.drafter))
        states = [Session(seed=first_seed + b) for b in range(sessions)]
        turn = 0
        while active := [state for state in states if len(state.output) < length]:
            gammas = [
                0 if self.mode is Mode.OFF else self.gammas[(state.seed + turn) % len(self.gammas)] for state in active
            ]
            self._extend(q_rows, active, [gamma + self.ahead if gamma else 0 for gamma in gammas])
            drafts = [state.chain.cut(gamma) for state, gamma in zip(active, gammas, strict=True)]
            p = p_rows.of(
                [pair for state, draft in zip(active, drafts, strict=True) for pair in self._seen(state, draft)]
            )
            positions = [len(self.prompt) + len(state.output) for state in active]
            verdicts = verification.verify(self.mode, p, drafts, [state.seed for state in active], positions)
            for state, verdict in zip(active, verdicts, strict=True):
                self._commit(state, verdict)
            turn += 1
        return [state.output[:length] for state in states]

    def _seen(self, state: "Session", draft: Draft) -> list[tuple[Context, Context]]:
        """Return the context of each of the draft's rows, and the part of it that penalties see."""
        outputs = [state.output + draft.tokens[:step] for step in range(len(draft.tokens) + 1)]
        return [(output, output if self.penalties_see_drafts else state.output) for output in outputs]

    def _commit(self, state: "Session", verdict: Verdict) -> None:
        """Append the verdict, and keep the rest of the chain if it continues the verdict."""
        count = len(verdict.tokens)
        continues = state.chain.tokens[:count] == verdict.tokens
        state.output += verdict.tokens
        if continues:
            state.chain = Draft(state.chain.tokens[count:], state.chain.probs[count:])
        else:
            state.chain, state.start = NO_DRAFT, len(self.prompt) + len(state.output)

    def _extend(self, rows: Rows, states: list["Session"], wanted: list[int]) -> None:
        """Draft one token a step for every session whose chain is shorter than wanted."""
        while wanting := [s for s, count in zip(states, wanted, strict=True) if len(s.chain.tokens) < count]:
            contexts = [state.output + state.chain.tokens for state in wanting]
            tokens, probs = proposal.propose(
                self.mode,
                rows.of([(context, context) for context in contexts]),
                [state.seed for state in wanting],
                [len(self.prompt) + len(context) for context in contexts],
                self.support,
                [state.start if self.chain_starts else 0 for state in wanting],
            )
            for at, state in enumerate(wanting):
                state.chain = Draft((*state.chain.tokens, tokens[at]), state.chain.probs + tuple(probs[at : at + 1]))


@dataclass
class Session:
    """One generation and the chain of drafts that continues it."""

    seed: int
    output: Context = ()
    chain: Draft = NO_DRAFT
    start: int = len(PROMPT)
