"""The generations of a process: each call is checked, gets a session of its own, and has its rounds counted."""

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace
from itertools import count
from typing import Literal

from specdec.errors import (
    ContextLengthExceeded,
    Draining,
    FieldInvalid,
    FieldRequired,
    GammaTooLarge,
    UnsupportedParameter,
)
from specdec.grammar.compiler import GrammarCompiler
from specdec.grammar.state import GrammarState
from specdec.rules.allotment import Judgement
from specdec.rules.gamma_policy import PolicyKind
from specdec.rules.grammar import Grammar
from specdec.rules.params import Mode, check_ids, check_logprobs
from specdec.wire.generation import GenerationCall, Round, VerifierInfo
from verifier_service.batching.batch_plan import Row, rank
from verifier_service.batching.scheduler import Scheduler
from verifier_service.batching.speculation import BatchSpeculation
from verifier_service.config import VerifierSettings
from verifier_service.drafters.drafts import Drafts
from verifier_service.drafters.sources import DraftSources
from verifier_service.generation.credit import Credit
from verifier_service.generation.runs import Run, Runs
from verifier_service.generation.session import Session
from verifier_service.metrics import VerifierMetrics


class Generations:
    """Begins generations and keeps track of those that run."""

    def __init__(  # noqa: PLR0913 - the parts of a process
        self,
        settings: VerifierSettings,
        info: VerifierInfo,
        target: Scheduler,
        sources: DraftSources,
        speculation: BatchSpeculation,
        metrics: VerifierMetrics,
        grammars: GrammarCompiler | None = None,
    ) -> None:
        """`info` has the limits that calls must keep; the other parts are shared by all sessions.

        Without `grammars`, calls that have one are refused.
        """
        self._settings = settings
        self._info = info
        self._target = target
        self._sources = sources
        self._speculation = speculation
        self._metrics = metrics
        self._grammars = grammars
        self._published: Judgement | None = None
        """The judgement that the metrics show."""
        self._runs = Runs()
        self._numbers = count()
        self._draining = False

    def start(self, call: GenerationCall, credit: Credit | None = None) -> Run:
        """Begin a generation; raises what `check` and `Runs.start` do, and Draining behind `drain`.

        Args:
            credit: how far it may go before its reader grants more; None lets the reader hold it back by not reading.
        """
        if self._draining:
            raise Draining("the verifier is shutting down")
        check(call, self._info)
        call, grammar = greedy_as_coupled(call), call.sampling.grammar
        source = self._session(call, credit=credit).run() if grammar is None else self._following(grammar, call, credit)
        return self._runs.start(call.session_id, call.epoch, source)

    async def _following(
        self, grammar: Grammar, call: GenerationCall, credit: Credit | None
    ) -> AsyncGenerator[Round, None]:
        """The rounds of a call with a grammar, which is compiled on a thread: that may take seconds."""
        if self._grammars is None:
            raise UnsupportedParameter("this model's tokenizer cannot be used with grammars", "sampling.grammar")
        state = await asyncio.to_thread(self._grammars.compile, grammar)
        async with aclosing(self._session(call, state, credit).run()) as rounds:
            async for done in rounds:
                yield done

    async def drain(self, limit: float) -> int:
        """Wait for the running generations for at most `limit` seconds, then end the rest; returns how many."""
        self._draining = True
        return await self._runs.drain(limit)

    def _session(
        self, call: GenerationCall, grammar: GrammarState | None = None, credit: Credit | None = None
    ) -> Session:
        limit = length_limit(call, self._info.context_length)
        gamma = fixed_gamma(call, self._settings.gamma, self._info.gamma_max)
        drafts = Drafts()
        if gamma != 0:
            drafts = self._sources.drafts(call, limit, gamma)
        name = f"{call.session_id}#{next(self._numbers)}"
        asked = gamma if self._sources.asks_drafters(call) else 0
        controller = self._speculation.session(drafts.source, asked, call.speculation.policy)
        place = rank(call.priority, time.monotonic())
        # A step that only lets it in is time of all that run, and worth more than a guess in its first round.
        guesses = drafts.guesses and not self._target.running
        asks = controller.drafts or guesses or grammar or call.speculation.detail
        plain = not asks and (credit is None or credit.allows(len(call.tokens)))
        admission = Row(call, name, place, limit, call.tokens, goal=0, grammar=grammar, runs_ahead=plain)
        return Session(admission, self._settings.chunk_tokens, self._target, drafts, controller, self._count, credit)

    def _count(self, done: Round, awaited: int) -> None:
        """Count a round that waited for `awaited` drafts, and publish the costs where they have changed."""
        self._metrics.count(done, awaited)
        report = self._speculation.report()
        if report is not self._published:
            self._published = report
            self._metrics.judge(report)


def greedy_as_coupled(call: GenerationCall) -> GenerationCall:
    """The call in mode coupled where that commits the same tokens as its own mode for less work.

    At temperature 0 every exact mode commits the target's likeliest tokens, and coupled drafts need no q̂.
    """
    exact = call.speculation.mode is not Mode.OFF and not call.speculation.lossy
    if call.sampling.temperature > 0.0 or not exact:
        return call
    return replace(call, speculation=replace(call.speculation, mode=Mode.COUPLED))


def fixed_gamma(call: GenerationCall, default: int | Literal["auto"], gamma_max: int) -> int | None:
    """The γ that the call or the settings fix, or a tree's nodes; 0 is plain decoding, None follows measured costs."""
    if call.speculation.mode is Mode.OFF:
        return 0
    if call.speculation.tree is not None:
        return call.speculation.tree.nodes
    if call.speculation.gamma is not None:
        return call.speculation.gamma
    policy = call.speculation.policy
    if policy.policy is PolicyKind.EGAG:
        return policy.most(gamma_max)  # the drafter ends drafts before
    if policy.policy is PolicyKind.OPTIMAL or default == "auto":
        return None
    return min(default, policy.most(gamma_max))


def check(call: GenerationCall, info: VerifierInfo) -> None:
    """Refuse a call that would hurt the process or the other sessions of a batch.

    Raises:
        RequestError: the call breaks a limit; the error names the field.
    """
    if not call.session_id:
        raise FieldRequired("session_id must not be empty", "session_id")
    if not call.tokens:
        raise FieldRequired("tokens must not be empty", "tokens")
    if not 0 < call.prompt_len <= len(call.tokens):
        raise FieldInvalid(f"prompt_len must be in 1..{len(call.tokens)}, got {call.prompt_len}", "prompt_len")
    _check_length(call, info.context_length)
    check_ids(call.tokens, "tokens", info.vocab_size)
    check_ids(call.stop_token_ids, "stop_token_ids", info.vocab_size)
    check_ids(call.speculation.prediction, "speculation.prediction", info.vocab_size)
    for field, ids in call.sampling.named_ids.items():
        check_ids(ids, f"sampling.{field}", info.vocab_size)
    call.sampling.check_choice(info.vocab_size)
    check_logprobs(call.logprobs)
    if call.speculation.tree is not None and not info.trees:
        raise UnsupportedParameter("the backend of this verifier judges no trees", "speculation.tree")
    if call.speculation.tree is not None and call.sampling.grammar is not None:
        raise UnsupportedParameter("trees are not drafted under a grammar", "speculation.tree")
    gamma = call.speculation.gamma
    if gamma is not None and gamma > info.gamma_max:
        raise GammaTooLarge(f"gamma is at most {info.gamma_max} here, got {gamma}", "speculation.gamma")
    call.speculation.policy.check_limit(info.gamma_max)


def length_limit(call: GenerationCall, context_length: int) -> int:
    """The sequence length, in tokens, at which the generation ends at the latest."""
    return min(call.prompt_len + call.max_tokens, context_length)


def _check_length(call: GenerationCall, context_length: int) -> None:
    if call.prompt_len >= context_length or len(call.tokens) > context_length:
        longest = max(call.prompt_len, len(call.tokens))
        raise ContextLengthExceeded(f"{longest} tokens do not fit a context of {context_length}", "tokens")
