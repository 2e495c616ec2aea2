"""Drafts from a small language model: each step is one packed pass that drafts for every session.

A session gets one token a step, or several where local sources guessed the model's drafts. The pass then computes the
guesses, too. At each position a draft is drawn from the model's q with the random number of that position, as without
guesses. The draws up to the first that differs from its guess are the session's drafts: the same tokens, with the same
q̂, in fewer steps.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import zip_longest
from statistics import median
from weakref import WeakKeyDictionary

import structlog
import torch
from torch import Tensor

from drafter_service.drafters.beam_drafter import propose_beams
from drafter_service.drafters.retokenized import Translation
from drafter_service.drafters.source_reader import Guesser
from drafter_service.drafters.translated_model import TranslatedModel
from drafter_service.drafters.tree_level import next_levels
from drafter_service.sessions.draft_session import DraftSession
from drafter_service.sessions.drafter import (
    BeamPasses,
    DraftedLevel,
    DraftedRun,
    DraftedToken,
    DrafterInfo,
    DraftFailure,
    NoGuess,
    ScheduledSession,
    StepResult,
)
from drafter_service.sessions.tree_session import TreeSession
from specdec.engine import Chunk, Engine, SequenceMemory
from specdec.engine.byte_tokenizer import ByteTokenizer
from specdec.engine.protocol import PromptReader
from specdec.errors import TokenizerMismatch
from specdec.grammar.compiler import GrammarCompiler
from specdec.grammar.state import TokenMasks
from specdec.planning.certainty import Certainty, certainties
from specdec.rules.coupling import earliest
from specdec.rules.draft import SparseProbs
from specdec.rules.proposal import propose, propose_certain, propose_each
from specdec.rules.speculation import Mode
from specdec.sampling.distribution import History, certain_tokens, probabilities
from specdec.sampling.params import SamplingParams
from specdec.sampling.vocabulary import Vocabulary
from specdec.wire.beams import BeamAsk

_log = structlog.get_logger()
_MOST = 8
"""Maximum number of alternatives to one draft."""
_TRIAL = "trial"
_TRIAL_STEPS = 8


@dataclass(frozen=True, slots=True)
class DraftRow:
    """One row of logits, from which a token is drafted for a session."""

    session: DraftSession
    guesses: tuple[int, ...] = ()
    """Guesses that the pass computed after the session's tokens and before this row."""

    @property
    def position(self) -> int:
        """Absolute position of the token."""
        return len(self.session) + len(self.guesses)


@dataclass(frozen=True, slots=True)
class _Chain:
    """A session that a pass completes, with the guesses that the pass computes after its tokens."""

    session: DraftSession
    guesses: tuple[int, ...] = ()

    @property
    def rows(self) -> list[DraftRow]:
        """Rows of logits: one after the session's tokens, and one after each guess."""
        return [DraftRow(self.session, self.guesses[:seen]) for seen in range(len(self.guesses) + 1)]


class ModelDrafter:
    """A language model as a Drafter. q is made from its logits with the request's sampling parameters."""

    def __init__(  # noqa: PLR0913 - the parts of a drafter
        self,
        name: str,
        model: Engine,
        support: int,
        kind: str = "model",
        grammars: GrammarCompiler | None = None,
        tokenizer: Callable[[], ByteTokenizer] | None = None,
        guesser: Guesser | None = None,
    ) -> None:
        """Create the drafter and measure the duration of a step.

        Args:
            model: engine that the drafter uses exclusively from now on.
            support: maximum number of ids in a q̂.
            kind: kind of drafter that verifiers see.
            grammars: compiler of grammars over the model's tokens; without it, no grammar masks q.
            tokenizer: loads the model's tokenizer, to draft for targets with another one; None rejects those targets.
            guesser: guesses the model's drafts; None drafts one token a step.
        """
        self._model = model
        self._support = support
        self._tokenizer = tokenizer
        self._grammars = GrammarMasks(grammars)
        self._guesser = guesser
        self.sequences: SequenceMemory = model
        self.info = DrafterInfo(
            model=name,
            tokenizer_hash=model.tokenizer_hash,
            vocab_size=model.vocab_size,
            context_length=model.context_length,
            step_seconds=self._measure(),
            kind=kind,
            outcomes=not isinstance(model, PromptReader),
            encoder_decoder=isinstance(model, PromptReader) and model.encoder_decoder,
        )

    def translated(self, target: Vocabulary) -> "ModelDrafter":
        """Return a drafter for targets with another vocabulary. It shares the model, so the two must take turns.

        It has no guesses, which would have to be translated to the model's tokens.

        Raises:
            TokenizerMismatch: the bytes of the model's tokens are unknown, or it shares no token with the target.
        """
        if self._tokenizer is None:
            raise TokenizerMismatch(f"the drafts of {self.info.model} cannot be translated: its tokenizer has no bytes")
        translation = Translation(self._tokenizer(), target)
        if not translation.same:
            raise TokenizerMismatch(f"{self.info.model} and the target have no token in common")
        model = TranslatedModel(self._model, translation)
        drafter = ModelDrafter(self.info.model, model, self._support, self.info.kind)
        own = self.info.tokenizer_hash
        drafter.info = replace(
            drafter.info, tokenizer_hash=own, overlap=translation.overlap, vocabulary=target.digest, outcomes=False
        )
        return drafter

    def beams(self, ask: BeamAsk, chunk_tokens: int) -> BeamPasses:
        """Propose the beams that the model's own search finds after those of the target; see `BeamProposer`."""
        return propose_beams(self._model, ask, chunk_tokens)

    def step(self, batch: Sequence[ScheduledSession]) -> list[StepResult]:
        """Compute the scheduled tokens in one pass, and draft for each session that this completes."""
        chunks: list[Chunk] = []
        complete: list[_Chain] = []
        for scheduled in batch:
            session = scheduled.session
            pending = session.tokens_from(self._model.length(session.key))
            last = scheduled.count == len(pending)
            guesses = self._guesses(scheduled)
            if not last:
                chunks.append(Chunk(session.key, pending[: scheduled.count], logits=0))
                continue
            if isinstance(session, TreeSession):
                chunks.append(_tree_chunk(session, pending))
            else:
                chunks.append(Chunk(session.key, [*pending, *guesses], logits=1 + len(guesses)))
            complete.append(_Chain(session, guesses))
        logits = self._model.forward(chunks)  # [rows of the complete sessions, V]
        if not any(isinstance(each.session, TreeSession) for each in complete):
            return self._chains(logits, complete)
        return self._mixed(complete, logits.split_with_sizes([chunk.logits for chunk in chunks if chunk.logits]))

    def _guesses(self, scheduled: ScheduledSession) -> tuple[int, ...]:
        """Return guesses of the session's next drafts, as many as there is memory for; none evicts a session.

        Sessions that push chains have none. A pushed chain has the random numbers of later drafts, and these would
        decide whether there is time for it.
        """
        session = scheduled.session
        if self._guesser is None or session.outcomes or isinstance(session, TreeSession):
            return ()
        guesses = self._guesser.guesses(session, scheduled.count)
        length = self._model.length(session.key) + scheduled.count + len(guesses)
        return tuple(guesses) if guesses and self._model.reserve(session.key, length) else ()

    def _mixed(self, batch: Sequence[_Chain], logits: Sequence[Tensor]) -> list[StepResult]:
        """Draft for a batch that includes tree sessions. `logits` holds the rows of each session."""
        results: list[StepResult] = []
        chains: list[tuple[_Chain, Tensor]] = []
        trees: list[tuple[TreeSession, Tensor]] = []
        for chain, rows in zip(batch, logits, strict=True):
            session = chain.session
            if not isinstance(session, TreeSession):
                chains.append((chain, rows))
                continue
            # The last token of the sequence is computed again with the next level, as its parent.
            self._model.truncate(session.key, len(session) - 1)
            if session.chain:  # another source began the chain; the model does not extend it
                results.append(NoGuess(session))
            else:
                trees.append((session, rows))
        if chains:
            results += self._chains(torch.cat([rows for _, rows in chains]), [chain for chain, _ in chains])
        return results + self._levels(trees)

    def _chains(self, logits: Tensor, chains: Sequence[_Chain]) -> list[StepResult]:
        """Draft for sessions with chains; `logits` [Σ(guesses + 1), V] are in their order."""
        drawn = iter(self._drafts(logits, [row for chain in chains for row in chain.rows]))
        results: list[StepResult] = []
        for chain in chains:
            own = [next(drawn) for _ in chain.rows]
            results += self._confirmed(chain, own) if chain.guesses else own
        return results

    def _confirmed(self, chain: _Chain, drawn: Sequence[DraftedToken | DraftFailure]) -> list[StepResult]:
        """Return the drafts up to the first that differs from its guess, and drop the computed state after them."""
        kept: list[DraftedToken] = []
        failed: list[StepResult] = []
        for each, guess in zip_longest(drawn, chain.guesses):
            if isinstance(each, DraftFailure):
                failed.append(each)
                break
            kept.append(each)
            if each.token != guess:
                break
        self._model.truncate(chain.session.key, len(chain.session) + max(len(kept), 1) - 1)
        run = DraftedRun(chain.session, kept, len(chain.guesses))
        return [run, *failed] if kept else failed

    def _levels(self, trees: Sequence[tuple[TreeSession, Tensor]]) -> list[StepResult]:
        """Draft the next level of each tree. A session that raises fails alone."""
        if not trees:
            return []
        sessions, logits = zip(*trees, strict=True)
        try:
            levels = next_levels(sessions, logits, self._support)
        except Exception as error:  # noqa: BLE001 - a failing session must not affect the others
            if len(trees) == 1:
                return [DraftFailure(sessions[0], error)]
            return [result for each in trees for result in self._levels([each])]
        return [DraftedLevel(*each) for each in zip(sessions, levels, strict=True)]

    def _drafts(self, logits: Tensor, rows: Sequence[DraftRow]) -> list[DraftedToken | DraftFailure]:
        """Draft one token per row. A row whose parameters or logits raise fails alone."""
        try:
            return self._propose(logits, rows)
        except Exception as error:  # noqa: BLE001 - a failing row must not affect the others
            if len(rows) == 1:
                return [DraftFailure(rows[0].session, error)]
            return [self._drafts(logits[at : at + 1], [row])[0] for at, row in enumerate(rows)]

    def _propose(self, logits: Tensor, rows: Sequence[DraftRow]) -> list[DraftedToken | DraftFailure]:
        if not rows:
            return []
        sessions = [row.session for row in rows]
        histories = [self._grammars.history(row.session, row.guesses) for row in rows]
        drawn = self._drawn(logits, rows, histories)
        tokens = [token for token, _ in drawn]
        sure = _certainties(logits, sessions, histories, tokens)
        others = alternatives(logits, sessions, tokens, self._grammars.history)
        return [
            DraftedToken(session, *each, sure.get(at), others.get(at, ()))
            for at, (session, each) in enumerate(zip(sessions, drawn, strict=True))
        ]

    def _drawn(
        self, logits: Tensor, rows: Sequence[DraftRow], histories: Sequence[History]
    ) -> list[tuple[int, SparseProbs | None]]:
        """Return the draft of each row. If all rows are greedy, no distribution is computed on the host."""
        sessions = [row.session for row in rows]
        params, modes = [session.params for session in sessions], [session.mode for session in sessions]
        if logits.is_cpu and all(each.temperature == 0.0 for each in params):
            return propose_certain(modes, *certain_tokens(logits, params, histories))
        return propose_each(
            modes,
            probabilities(logits, params, histories),
            seeds=[each.seed for each in params],
            positions=[row.position for row in rows],
            k=self._support,
            starts=[session.chain_start for session in sessions],
        )

    def _measure(self) -> float:
        """Return the median duration of a one-session step, in seconds; 0 if there is no memory to try."""
        steps = min(_TRIAL_STEPS, self._model.context_length)
        if not self._model.admit(_TRIAL, steps, [0] * steps):
            return 0.0
        try:
            return median(self._trial() for _ in range(steps))
        finally:
            self._model.release(_TRIAL)

    def _trial(self) -> float:
        started = time.perf_counter()
        q = probabilities(self._model.forward([Chunk(_TRIAL, [0], logits=1)]), [SamplingParams()], [History()])
        propose(Mode.REJECTION, q, [0], [0], self._support)
        return time.perf_counter() - started


def _certainties(
    logits: Tensor, sessions: Sequence[DraftSession], histories: Sequence[History], tokens: Sequence[int]
) -> dict[int, Certainty]:
    """Return the certainty of each row's token, for the sessions that ask for it.

    The q of a greedy session holds a single token, so its certainty is taken at temperature 1.
    """
    asking = [row for row, session in enumerate(sessions) if session.reads_certainty]
    if not asking:
        return {}
    params = [sessions[row].params for row in asking]
    warm = [each if each.temperature else replace(each, temperature=1.0) for each in params]
    q = probabilities(logits[asking], warm, [histories[row] for row in asking])
    return dict(zip(asking, certainties(q, [tokens[row] for row in asking]), strict=True))


def _tree_chunk(session: TreeSession, pending: list[int]) -> Chunk:
    """Return a chunk with the uncomputed tokens and the whole tree after them. Only the last level needs logits."""
    growth = session.growth
    if not growth.tokens:
        return Chunk(session.key, pending, logits=1)
    parents = growth.tree.after(len(pending)).parents
    return Chunk(session.key, [*pending, *growth.tokens], logits=growth.rows, parents=parents)


def alternatives(
    logits: Tensor,
    sessions: Sequence[DraftSession],
    tokens: Sequence[int],
    history: Callable[[DraftSession], History],
) -> Mapping[int, Sequence[int]]:
    """Return the alternatives to each row's draft, most likely first, for the sessions that push chains.

    A target whose distribution is near q draws one of q's likely tokens. In mode coupled it draws with the draft's
    noise, so the alternatives are the runners-up of the race that the draft won.
    """
    rows = [row for row, session in enumerate(sessions) if session.outcomes]
    if not rows:
        return {}
    asking = [sessions[row] for row in rows]
    q = probabilities(logits[rows], [each.params.ranking for each in asking], [history(each) for each in asking])
    mass, ids = q.topk(min(q.shape[1], max(each.outcomes for each in asking) + 1, _MOST + 1))
    likely = [
        [each for each, weight in zip(*row, strict=True) if weight]
        for row in zip(ids.tolist(), mass.tolist(), strict=True)
    ]
    coupled = [
        place for place, each in enumerate(asking) if each.mode is Mode.COUPLED and each.params.temperature > 0.0
    ]
    if coupled:
        seeds = [asking[place].params.seed for place in coupled]
        positions = [len(asking[place]) for place in coupled]
        races = earliest(mass[coupled].cpu(), ids[coupled].cpu(), seeds, positions, ids.shape[1])
        for place, race in zip(coupled, races, strict=True):
            likely[place] = race
    return {row: [each for each in some if each != tokens[row]] for row, some in zip(rows, likely, strict=True)}


class GrammarMasks:
    """Grammar masks of all sessions. A thread compiles the grammars, so no step waits for one."""

    def __init__(self, compiler: GrammarCompiler | None) -> None:
        """Create the masks; without a compiler, nothing is masked."""
        self._compiler = compiler
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="grammars")
        self._states: WeakKeyDictionary[DraftSession, Future[TokenMasks]] = WeakKeyDictionary()

    def history(self, session: DraftSession, guesses: tuple[int, ...] = ()) -> History:
        """Return the history, with the grammar's mask, that the draft distribution after the guesses depends on."""
        grammar, history = session.params.grammar, session.history
        if guesses and session.params.needs_history:
            history = History(history.prompt, (*history.output, *guesses))
        if self._compiler is None or grammar is None:
            return history
        state = self._states.get(session)
        if state is None:
            state = self._states[session] = self._thread.submit(self._compiler.compile, grammar)
            state.add_done_callback(_log_failure)
        if not state.done() or state.exception() is not None or state.result().expensive:
            return history
        return replace(history, allowed=state.result().masks(session.output, guesses)[-1])


def _log_failure(compiled: "Future[TokenMasks]") -> None:
    error = None if compiled.cancelled() else compiled.exception()
    if error is not None:
        _log.warning("grammar_unusable", error=str(error))
