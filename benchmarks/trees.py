"""The in-process engine with a tree in each round, from the draft model or from it and n-grams of the sequence."""

import time
from dataclasses import dataclass, replace

from benchmarks.local import Local, target_row
from benchmarks.run import Ask
from drafter_service.sessions.drafter import DraftedLevel, Drafter, ScheduledSession
from drafter_service.sessions.tree_session import TreeSession
from specdec.engine import NativeEngine
from specdec.errors import InternalError
from specdec.rules.draft import Verdict, certain
from specdec.rules.speculation import Mode, Speculation, TreeOptions
from specdec.sampling.params import SamplingParams
from specdec.sources.ngram import Ngram
from specdec.trees.joining import as_tree, side_by_side
from specdec.trees.tree import TreeDraft
from specdec.wire.session import Commit, Open, TreePlan
from verifier_service.backends.batch_plan import ScheduledChunk
from verifier_service.backends.target_pass import verify_batch

_NAME = "bench"
_WINDOW = 4096


@dataclass(slots=True)
class Work:
    """Sums over generations."""

    tokens: int = 0
    rounds: int = 0
    seconds: float = 0.0
    """CPU seconds, including the prompts."""

    @property
    def pace(self) -> float:
        """Tokens a CPU second."""
        return self.tokens / self.seconds

    @property
    def each_round(self) -> float:
        """Tokens per round."""
        return self.tokens / self.rounds


@dataclass(frozen=True, slots=True)
class Way:
    """Decoding settings of one side."""

    name: str
    gamma: int = 0
    """Length of chains."""
    tree: TreeOptions | None = None
    ngrams: bool = False
    """Whether n-grams of the sequence draft in addition to the model, each for half of the nodes."""


class TreeDecoder:
    """Decodes one sequence at a time by chains or by trees."""

    def __init__(self, target: NativeEngine, drafter: Drafter) -> None:
        self._target = target
        self._drafter = drafter
        self._local = Local(target, drafter)

    def run(self, way: Way, ask: Ask) -> Work:
        """Decode the ask's tokens."""
        started = time.process_time()
        if way.tree is None:
            run = self._local.generate(replace(ask, gamma=way.gamma))
            return Work(len(run.tokens), run.rounds, time.process_time() - started)
        limit = len(ask.prompt) + ask.tokens
        for memory in (self._target, self._drafter.sequences):
            if not (memory.admit(_NAME, limit) and memory.reserve(_NAME, limit)):
                raise InternalError(f"no room for {limit} tokens")
        try:
            rounds = self._decode(TreeDrafts(self._drafter, ask, way.tree, ngrams=way.ngrams), ask)
        finally:
            self._target.release(_NAME)
            self._drafter.sequences.release(_NAME)
        return Work(ask.tokens, rounds, time.process_time() - started)

    def _decode(self, drafts: "TreeDrafts", ask: Ask) -> int:
        """Return the number of rounds that the tokens took."""
        tokens, computed, rounds = list(ask.prompt), 0, 0
        while len(tokens) < len(ask.prompt) + ask.tokens:
            row = target_row(_NAME, ask, tuple(tokens), drafts.draft())
            call = replace(row.call, speculation=Speculation(drafts.mode))
            chunk = ScheduledChunk(replace(row, call=call), computed, len(tokens) - computed)
            (verdict,) = verify_batch(self._target, [chunk])
            if not isinstance(verdict, Verdict):
                raise InternalError("the pass failed")
            computed = len(tokens) + verdict.accepted
            drafts.commit(len(tokens), verdict.tokens)
            tokens += verdict.tokens
            rounds += 1
        return rounds


class TreeDrafts:
    """The drafters' side of one generation, without a connection."""

    def __init__(self, drafter: Drafter, ask: Ask, tree: TreeOptions, *, ngrams: bool) -> None:
        self._drafter = drafter
        self._limit = len(ask.prompt) + ask.tokens
        self._depth = tree.depth
        self._nodes = tree.nodes // 2 if ngrams else tree.nodes
        self._ngrams = Ngram(_WINDOW) if ngrams else None
        self.mode = Mode.REJECTION if ask.temperature else Mode.COUPLED
        params = SamplingParams(temperature=ask.temperature, seed=ask.seed)
        plan = TreePlan(tree.width, tree.depth)
        wanted = min(self._nodes, ask.tokens - 1)
        opened = Open(_NAME, 1, ask.prompt, len(ask.prompt), params, self.mode, wanted, self._limit, tree=plan)
        self._session = TreeSession(_NAME, opened, plan, drafter.info.context_length)
        self._read(ask.prompt)

    def draft(self) -> TreeDraft:
        """Return the tree of one round."""
        session = self._session
        while session.verifier_waits:
            pending = len(session) - self._drafter.sequences.length(_NAME)
            (level,) = self._drafter.step([ScheduledSession(session, pending)])
            if not isinstance(level, DraftedLevel):
                raise InternalError("the drafter made no level of a tree")
            session.growth.add(level.families)
        trees, room = [session.growth.draft()], self._limit - len(session) - 1
        if self._ngrams is not None:
            guess = self._ngrams.draft((), min(self._nodes, self._depth, max(0, room)))
            trees.append(as_tree(certain(guess, self.mode)))
        return side_by_side(trees).cut(max(0, room))

    def commit(self, base_len: int, tokens: tuple[int, ...]) -> None:
        """Apply a verdict."""
        left = self._limit - base_len - len(tokens)
        if left > 0:
            message = Commit(_NAME, 1, base_len, tokens, min(self._nodes, left - 1))
            sequences = self._drafter.sequences
            sequences.truncate(_NAME, min(self._session.commit(message), sequences.length(_NAME)))
            self._read(tokens)

    def _read(self, tokens: tuple[int, ...]) -> None:
        if self._ngrams is not None:
            self._ngrams.read(tokens)
