"""The generations of a process: checks and fences each call, and turns it into a sequence of the loop."""

import asyncio
import math
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from itertools import count
from typing import Protocol

from specdec.beams.options import BeamOptions, candidates
from specdec.errors import (
    ContextLengthExceeded,
    Draining,
    Fenced,
    FieldInvalid,
    FieldRequired,
    GammaTooLarge,
    UnsupportedParameter,
)
from specdec.grammar.compiler import GrammarCompiler
from specdec.planning.allotment import Judgement
from specdec.planning.gamma_policy import AUTO, GammaPolicy, PolicyKind
from specdec.rules.blocks import adapter_end
from specdec.rules.speculation import Mode
from specdec.sampling.grammar import Grammar
from specdec.sampling.params import check_ids, check_logprobs, check_prompt_logprobs
from specdec.wire.generation import Adapter, GenerationCall, Round, VerifierInfo
from verifier_service.backends.batch_plan import HeadUse, PromptScores, Row, rank
from verifier_service.beams.beam_searches import BeamSearches
from verifier_service.config import VerifierSettings
from verifier_service.drafts.drafts import Drafts
from verifier_service.drafts.sources import DraftSources
from verifier_service.metrics import VerifierMetrics
from verifier_service.passes.engine_loop import EngineLoop
from verifier_service.passes.sequence import Reader, Sequence
from verifier_service.speculation.controller import BatchSpeculation

_REMEMBERED = 65_536
"""Number of sessions whose epoch is kept."""
_MOST_SKEW = 60.0
"""Seconds by which a stored epoch may be ahead of this process's clock."""


class Epochs:
    """Fence that holds the highest epoch of each session."""

    def __init__(self, remembered: int = _REMEMBERED, clock: Callable[[], float] = time.time) -> None:
        """Create an empty fence for at most `remembered` sessions; `clock` returns Unix seconds."""
        self._epochs: OrderedDict[str, int] = OrderedDict()
        self._remembered = remembered
        self._clock = clock

    def enter(self, session_id: str, epoch: int) -> None:
        """Record the epoch of a caller.

        Raises:
            Fenced: a higher epoch of the session has been seen.
        """
        highest = self._epochs.get(session_id, 0)
        if epoch < highest:
            raise Fenced(f"epoch {epoch} of the session is over, {highest} has it")
        self._epochs[session_id] = max(highest, min(epoch, round((self._clock() + _MOST_SKEW) * 1e6)))
        self._epochs.move_to_end(session_id)
        if len(self._epochs) > self._remembered:
            self._epochs.popitem(last=False)


def greedy_as_coupled(call: GenerationCall) -> GenerationCall:
    """Return the call in mode coupled if that commits the same tokens as its own mode for less work.

    At temperature 0, every exact mode commits the target's most likely tokens, and coupled drafts need no q̂.
    """
    exact = call.speculation.mode is not Mode.OFF and not call.speculation.lossy
    if call.sampling.temperature > 0.0 or not exact:
        return call
    return replace(call, speculation=replace(call.speculation, mode=Mode.COUPLED))


def with_policy(call: GenerationCall, default: GammaPolicy) -> GenerationCall:
    """Return the call with the default policy if it does not specify the draft length of its chains."""
    asked = call.speculation
    if asked.gamma is not None or asked.tree is not None or asked.policy != AUTO:
        return call
    return replace(call, speculation=replace(asked, policy=default))


def fixed_gamma(call: GenerationCall, default: int | None, gamma_max: int) -> int | None:
    """Return the fixed γ, or the nodes of a tree. 0 means plain decoding; None means that measured costs decide."""
    if call.speculation.mode is Mode.OFF:
        return 0
    if call.speculation.tree is not None:
        return call.speculation.tree.nodes
    if call.speculation.gamma is not None:
        return call.speculation.gamma
    policy = call.speculation.policy
    if policy.policy is PolicyKind.EGAG:
        return policy.most(gamma_max)  # the drafter ends drafts earlier
    if policy.policy is PolicyKind.OPTIMAL or default is None:
        return None
    return min(default, policy.most(gamma_max))


def check(call: GenerationCall, info: VerifierInfo) -> None:
    """Refuse a call that exceeds the limits of this verifier.

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
    check_prompt_logprobs(call.prompt_logprobs, call.prompt_len)
    _check_supported(call, info)
    gamma = call.speculation.gamma
    if gamma is not None and gamma > info.gamma_max:
        raise GammaTooLarge(f"gamma is at most {info.gamma_max} here, got {gamma}", "speculation.gamma")
    call.speculation.policy.check_limit(info.gamma_max)


def with_own_salt(call: GenerationCall, adapters: Iterable[Adapter]) -> GenerationCall:
    """Return the call with a salt that ends with its adapter's part, as a gateway's does.

    So its KV is shared neither with calls of another adapter nor with those of the model as it is.

    Raises:
        FieldInvalid: the salt is one of another adapter.
    """
    ends = {each.name: adapter_end(each.system_fingerprint) for each in adapters}
    own = ends.pop(call.adapter, "")
    if call.cache_salt.endswith(tuple(ends.values())):
        raise FieldInvalid("cache_salt ends as the salts of another adapter do", "cache_salt")
    return call if call.cache_salt.endswith(own) else replace(call, cache_salt=call.cache_salt + own)


def length_limit(call: GenerationCall, context_length: int) -> int:
    """Return the largest length of the sequence, in tokens."""
    return min(call.prompt_len + call.max_tokens, context_length)


def _check_supported(call: GenerationCall, info: VerifierInfo) -> None:
    if call.prompt_logprobs is not None and not info.prompt_logprobs:
        raise UnsupportedParameter("the backend of this verifier scores no prompts", "prompt_logprobs")
    if call.speculation.tree is not None and not info.trees:
        raise UnsupportedParameter("the backend of this verifier judges no trees", "speculation.tree")
    if call.speculation.tree is not None and call.sampling.grammar is not None:
        raise UnsupportedParameter("trees are not drafted under a grammar", "speculation.tree")
    if call.adapter and all(call.adapter != each.name for each in info.adapters):
        raise UnsupportedParameter(f"this verifier has no adapter {call.adapter!r}", "adapter")
    if call.beams is not None and not info.beams:
        raise UnsupportedParameter("the backend of this verifier searches no beams", "use_beam_search")
    if call.beams is not None and candidates(call.beams.width, len(call.stop_token_ids)) > info.vocab_size:
        raise FieldInvalid(f"{info.vocab_size} ids are too few for {call.beams.width} beams", "beam_width")


def _check_length(call: GenerationCall, context_length: int) -> None:
    if call.prompt_len >= context_length or len(call.tokens) > context_length:
        longest = max(call.prompt_len, len(call.tokens))
        raise ContextLengthExceeded(f"{longest} tokens do not fit a context of {context_length}", "tokens")


class OpenGeneration(Protocol):
    """A generation that has begun. Methods run on the event loop."""

    def grant(self, length: float) -> None:
        """Set the sequence length in tokens from which on no round begins."""

    def fail(self, error: Exception) -> None:
        """End with an error, after the committed rounds."""

    def close(self) -> None:
        """End now. The reader receives nothing more."""


class Generations:
    """Begins generations and tracks the running ones."""

    def __init__(  # noqa: PLR0913 - the parts of a process
        self,
        settings: VerifierSettings,
        info: VerifierInfo,
        loop: EngineLoop,
        sources: DraftSources,
        speculation: BatchSpeculation,
        metrics: VerifierMetrics,
        grammars: GrammarCompiler | None = None,
        epochs: Epochs | None = None,
        beams: BeamSearches | None = None,
    ) -> None:
        """Create the registry. All sequences share the parts given here.

        `info` holds the limits of calls. Without `grammars`, calls with a grammar are refused, and without `beams`
        calls with beams.
        """
        self._settings = settings
        self._gamma, self._policy = settings.draft_length
        self._info = info
        self._loop = loop
        self._sources = sources
        self._speculation = speculation
        self._metrics = metrics
        self._grammars = grammars
        self._epochs = epochs or Epochs()
        self._beams = beams
        self._published: Judgement | None = None
        """Report last published to the metrics."""
        self._running: dict[str, OpenGeneration] = {}
        """Running generations by session id."""
        self._idle = asyncio.Event()
        self._numbers = count()
        self._draining = False
        self._compiling: set[asyncio.Task[None]] = set()

    def open(self, call: GenerationCall, reader: Reader, credit: float = math.inf) -> OpenGeneration:
        """Begin a generation. A running generation of the same session is fenced and ends.

        Args:
            call: the call to serve.
            reader: receives the rounds, and the error if the generation fails.
            credit: sequence length in tokens from which on no round begins until more is granted.

        Raises:
            RequestError: the call breaks a limit.
            Fenced: a higher epoch of the session has been seen.
            Draining: `drain` was called.
        """
        if self._draining:
            raise Draining("the verifier is shutting down")
        check(call, self._info)
        call = with_own_salt(call, self._info.adapters)
        self._epochs.enter(call.session_id, call.epoch)
        if (older := self._running.get(call.session_id)) is not None:
            older.fail(Fenced("a newer owner has the session"))
        if call.beams is not None:
            return self._search(call, call.beams, reader)
        sequence = self._sequence(with_policy(greedy_as_coupled(call), self._policy), reader, credit)
        self._running[call.session_id] = sequence
        sequence.on_end = lambda: self._forget(call.session_id, sequence)
        if call.sampling.grammar is None:
            sequence.guarded(self._enter, sequence)
        else:
            task = asyncio.create_task(self._follow(call.sampling.grammar, sequence))
            self._compiling.add(task)
            task.add_done_callback(self._compiling.discard)
        return sequence

    async def drain(self, limit: float) -> int:
        """Wait at most `limit` seconds for the running generations, end the rest, and return their number."""
        self._draining = True
        if self._running:
            self._idle.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(limit):
                    await self._idle.wait()
        left = list(self._running.values())
        for sequence in left:
            sequence.fail(Draining("the verifier is shutting down"))
        return len(left)

    async def _follow(self, grammar: Grammar, sequence: Sequence) -> None:
        """Compile the grammar of a sequence on a thread, which may take seconds, then admit the sequence."""
        try:
            if self._grammars is None:
                raise UnsupportedParameter("this model's tokenizer cannot be used with grammars", "sampling.grammar")
            sequence.follow(await asyncio.to_thread(self._grammars.compile, grammar))
        except Exception as error:  # noqa: BLE001 - a bad grammar fails only its own call
            sequence.fail(error)
        else:
            sequence.guarded(self._enter, sequence)

    def _search(self, call: GenerationCall, options: BeamOptions, reader: Reader) -> OpenGeneration:
        """Begin a beam search."""
        if self._beams is None:
            raise UnsupportedParameter("the backend of this verifier searches no beams", "use_beam_search")
        limit = length_limit(call, self._info.context_length)
        gamma = 0 if call.speculation.mode is Mode.OFF else call.speculation.gamma
        search = self._beams.search(call, options, limit, gamma, self._count, reader)
        self._running[call.session_id] = search
        search.on_end = lambda: self._forget(call.session_id, search)
        search.start()
        return search

    def _enter(self, sequence: Sequence) -> None:
        if not (sequence.ended or sequence.ended_before()):
            self._loop.enter(sequence)

    def _sequence(self, call: GenerationCall, reader: Reader, credit: float) -> Sequence:
        limit = length_limit(call, self._info.context_length)
        gamma = fixed_gamma(call, self._gamma, self._info.gamma_max)
        drafts = Drafts()
        if gamma != 0:
            drafts = self._sources.drafts(call, limit, gamma)
        name = f"{call.session_id}#{next(self._numbers)}"
        asked = gamma if self._sources.asks_drafters(call) else 0
        controller = self._speculation.session(drafts.source, asked, call.speculation.policy)
        place = rank(call.priority, time.monotonic())
        # An admission-only step delays every running sequence, which costs more than a guess in the first round gains.
        guesses = drafts.guesses and not self._loop.running
        asks = controller.drafts or guesses or call.sampling.grammar is not None or call.speculation.detail
        scores = PromptScores.of_call(call)
        plain = not asks and len(call.tokens) < credit and scores is None
        head = HeadUse(follows=drafts.reads_states)
        admission = Row(call, name, place, limit, call.tokens, goal=0, runs_ahead=plain, scores=scores, head=head)
        chunk = self._settings.chunk_tokens
        return Sequence(admission, chunk, self._loop, drafts, controller, self._count, reader, credit)

    def _forget(self, session_id: str, generation: OpenGeneration) -> None:
        if self._running.get(session_id) is generation:
            del self._running[session_id]
        if not self._running:
            self._idle.set()

    def _count(self, done: Round, awaited: int) -> None:
        """Count a round that waited for `awaited` drafts, and publish the batch report if it has changed."""
        self._metrics.count(done, awaited)
        report = self._speculation.report()
        if report is not self._published:
            self._published = report
            self._metrics.judge(report)
