"""Gateway's side of hop 1: one stream of rounds for all its generations at one verifier.

A generation is a slot of a stream. The gateway sends orders for slots, and `arrivals` collects the results. A verifier
of the previous release has no such stream: `CallStream` calls its Generate for each slot.
"""

import asyncio
import math
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping, Sequence
from contextlib import aclosing
from itertools import chain
from typing import Protocol

from gateway.tasks import cancel_and_wait
from specdec.errors import InternalError, NoVerifier, SpecdecError
from specdec.sampling.logprobs import TokenLogprobs
from specdec.serving.rpc.status import error_from_bytes
from specdec.wire.generation import GenerationCall, Round, Timing
from specdec.wire.passes import Opening, Orders, Pass

_JOINED = 64
"""Most rounds that are merged: the tokens of a round are shown in one step, which their log probabilities make long."""
HELD_TOKENS, HELD_SECONDS = 32, 0.25
"""Tokens after which the rounds of a patient slot are due, and seconds after which those of all patient slots are."""
_GROUP_IDS = 32 * 1024
"""Token ids that are written in about 2 ms."""
_ENTRY_IDS = 8
"""Token ids that take as long as an entry of a map or a list of lists."""


class RoundCheck:
    """Validates the rounds of one call in order."""

    def __init__(self, call: GenerationCall, vocab_size: int) -> None:
        self._length = len(call.tokens)
        self._limit = call.prompt_len + call.max_tokens
        self._prompt_len = call.prompt_len
        scored = call.prompt_logprobs is not None and len(call.tokens) == call.prompt_len
        self._scored = call.prompt_len - 1 if scored else 0
        """Number of prompt tokens whose log probabilities the next round must have."""
        self._vocab_size = vocab_size

    def take(self, verified: Round) -> None:
        """Check the next round.

        Raises:
            NoVerifier: the round is invalid, so the verifier counts as lost.
        """
        count = len(verified.tokens)
        sound = (
            verified.base_len == self._length
            and self._length + count <= self._limit
            and (count > 0 or verified.finish is not None)
            and len(verified.origins) == count
            and len(verified.logprobs) in (0, count)
            and len(verified.prompt_logprobs) == self._scored
            and verified.accepted <= min(count, len(verified.draft))
            and verified.cached_tokens <= self._prompt_len
            and all(map(self._are_ids, (verified.tokens, verified.draft)))
            and all(map(self._is_sound, chain(verified.logprobs, verified.prompt_logprobs)))
            and (verified.detail is None or len(verified.detail.judged) in (0, len(verified.draft)))
        )
        if not sound:
            raise NoVerifier(f"the verifier was lost: its round after {self._length} tokens is invalid")
        self._length += count
        self._scored = 0

    def _are_ids(self, tokens: Sequence[int]) -> bool:
        return not tokens or (min(tokens) >= 0 and max(tokens) < self._vocab_size)

    def _is_sound(self, own: TokenLogprobs) -> bool:
        """Whether ids are in the vocabulary and no log probability is NaN; it is minus infinity for a masked id."""
        ids, scores = zip(*own.top, strict=True) if own.top else ((), ())
        return self._are_ids(ids) and not math.isnan(sum(scores, own.logprob))


def joined_rounds(rounds: Sequence[Round]) -> Iterator[Round]:
    """Yield the rounds in order, with each run of joinable neighbours merged to rounds of at most _JOINED of them."""
    if len(rounds) == 1:
        yield rounds[0]
        return
    together: list[Round] = []
    for each in rounds:
        if together and (len(together) == _JOINED or not joinable(together[-1], each)):
            yield joined(together)
            together = []
        together.append(each)
    if together:
        yield joined(together)


def joinable(first: Round, second: Round) -> bool:
    """Whether two rounds can be merged.

    The merge preserves the statistics, and any fault for which one of the two would be refused.
    """
    return (
        _is_plain(first)
        and _is_plain(second)
        and first.finish is None
        and second.base_len == first.base_len + len(first.tokens)
        and not (second.cached_tokens or second.prompt_logprobs)
        and (first.fallback, first.drafter, first.forced) == (second.fallback, second.drafter, second.forced)
        and bool(first.logprobs) == bool(second.logprobs)
    )


def joined(rounds: Sequence[Round]) -> Round:
    """Merge joinable neighbours to one round; a single round is returned unchanged."""
    first, last = rounds[0], rounds[-1]
    if len(rounds) == 1:
        return first
    timings = [each.timing for each in rounds]
    return first._replace(
        tokens=tuple(chain.from_iterable(each.tokens for each in rounds)),
        origins=tuple(chain.from_iterable(each.origins for each in rounds)),
        logprobs=tuple(chain.from_iterable(each.logprobs for each in rounds)),
        finish=last.finish,
        speedup=last.speedup,
        timing=Timing(
            sum(each.draft for each in timings),
            sum(each.queue for each in timings),
            sum(each.verify for each in timings),
        ),
    )


def _is_plain(verified: Round) -> bool:
    """Whether a round has no draft and no detail, and lists of equal length. A merge would hide a length mismatch."""
    count = len(verified.tokens)
    return (
        count > 0
        and not verified.draft
        and not verified.accepted
        and verified.detail is None
        and len(verified.origins) == count
        and len(verified.logprobs) in (0, count)
    )


class RoundCaller(Protocol):
    """Hop 1 calls of a verifier client."""

    address: str

    def serve(self, orders: AsyncIterator[Orders]) -> AsyncGenerator[Pass]:
        """Yield one message per pass for all generations that the orders open."""

    def generate(self, call: GenerationCall, timeout: float) -> AsyncGenerator[Round]:
        """Yield the rounds of one generation."""


class Arrivals:
    """Received rounds and ends of generations that were not taken yet. Credit bounds their number.

    Rounds of a patient slot are held until it has HELD_TOKENS tokens or ends, at most HELD_SECONDS, so that they are
    committed together.
    """

    def __init__(self) -> None:
        self._rounds: dict[int, list[Round]] = {}
        """Rounds to take now, by slot."""
        self._patient: dict[int, list[Round]] = {}
        """Held rounds of each patient slot."""
        self._ended: dict[int, SpecdecError] = {}
        self._news = asyncio.Event()
        self._lost: SpecdecError | None = None
        self._timer: asyncio.TimerHandle | None = None
        """Timer that ends the wait of all held rounds."""

    def add(self, rounds: Sequence[tuple[int, Round]], ended: Mapping[int, SpecdecError]) -> None:
        """Add rounds and failures by slot."""
        for slot, verified in rounds:
            held = self._patient.get(slot)
            if held is None:
                self._rounds.setdefault(slot, []).append(verified)
                continue
            held.append(verified)
            count = verified.base_len + len(verified.tokens) - held[0].base_len
            if count >= HELD_TOKENS or verified.finish is not None:
                self._release(slot)
            elif self._timer is None:
                self._timer = asyncio.get_running_loop().call_later(HELD_SECONDS, self._release_all)
        for slot in ended:
            self._release(slot)
        self._ended |= ended
        if self._rounds or self._ended:
            self._news.set()

    def hold(self, slot: int, patient: bool) -> None:
        """Hold the next rounds of a slot if it is patient, else take all its rounds as they arrive."""
        if patient:
            self._patient.setdefault(slot, [])
        elif slot in self._patient:
            self._release(slot)
            del self._patient[slot]
            self._news.set()

    def drop(self, slot: int) -> None:
        """Forget the held rounds of a closed slot."""
        self._patient.pop(slot, None)

    def lose(self, error: SpecdecError) -> None:
        """Mark the stream as lost."""
        self._lost = error
        self._release_all()

    def _release(self, slot: int) -> None:
        """Make the held rounds of a slot due."""
        if held := self._patient.get(slot):
            self._rounds.setdefault(slot, []).extend(held)
            held.clear()

    def _release_all(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for slot in self._patient:
            self._release(slot)
        self._news.set()

    async def take(self) -> tuple[Mapping[int, Sequence[Round]], Mapping[int, SpecdecError]]:
        """Wait for due arrivals and take them: the rounds of each slot in order, and the error of each failed slot.

        Raises:
            SpecdecError: the stream is lost, and all earlier arrivals were taken.
        """
        while not (self._rounds or self._ended):
            if self._lost is not None:
                raise self._lost
            self._news.clear()
            await self._news.wait()
        rounds, self._rounds = self._rounds, {}
        ended, self._ended = self._ended, {}
        return rounds, ended


class RoundStream(Protocol):
    """Stream with slots."""

    arrivals: Arrivals

    def open(self, opening: Opening) -> None:
        """Start a generation in an unused slot."""

    def credit(self, slot: int, length: int) -> None:
        """Allow the sequence of a slot to grow to `length` tokens."""

    def cancel(self, slot: int) -> None:
        """End the generation of a slot."""

    async def close(self) -> None:
        """End all generations."""


class PassStream:
    """Stream of a verifier that sends passes. Orders of one event loop iteration are sent as one message.

    Long openings are messages of their own, because each takes milliseconds to write.
    """

    def __init__(self, verifier: RoundCaller) -> None:
        self.arrivals = Arrivals()
        self._opens: list[Opening] = []
        self._cancels: list[int] = []
        self._credits: dict[int, int] = {}
        self._due = asyncio.Event()
        self._over = False
        self._reading = asyncio.create_task(self._read(verifier))

    def open(self, opening: Opening) -> None:
        """Order a generation."""
        self._opens.append(opening)
        self._due.set()

    def credit(self, slot: int, length: int) -> None:
        """Order more credit."""
        self._credits[slot] = length
        self._due.set()

    def cancel(self, slot: int) -> None:
        """Order the end of a generation."""
        self._cancels.append(slot)
        self._credits.pop(slot, None)
        self._due.set()

    async def close(self) -> None:
        """End the call."""
        await cancel_and_wait(self._reading)

    async def _orders(self) -> AsyncGenerator[Orders]:
        while True:
            await self._due.wait()
            self._due.clear()
            if self._over:
                return
            opens, self._opens = self._opens, []
            cancels, self._cancels = self._cancels, []
            credits, self._credits = self._credits, {}
            *alone, opens = grouped(opens)
            for group in alone:
                yield Orders(group)
            yield Orders(opens, cancels, credits)

    async def _read(self, verifier: RoundCaller) -> None:
        lost: SpecdecError = NoVerifier(f"verifier {verifier.address} ended its stream")
        try:
            async with aclosing(verifier.serve(self._orders())) as passes:
                async for done in passes:
                    self.arrivals.add(done.rounds, {slot: error_from_bytes(end) for slot, end in done.ended.items()})
        except SpecdecError as error:
            lost = error
        finally:
            self.arrivals.lose(lost)
            # gRPC does not close the request iterator of a failed call: wake it so that it ends.
            self._over = True
            self._due.set()


def grouped(opens: Sequence[Opening]) -> list[list[Opening]]:
    """Return openings in order, in groups of at most about _GROUP_IDS token ids; at least one group."""
    groups, size = list[list[Opening]](([],)), 0
    for opening in opens:
        own = _ids(opening.call)
        if groups[-1] and size + own > _GROUP_IDS:
            groups.append([])
            size = 0
        groups[-1].append(opening)
        size += own
    return groups


def _ids(call: GenerationCall) -> int:
    """Return the number of token ids in a call; an entry of a map or a word counts as several."""
    sampling = call.sampling
    lists = len(sampling.allowed_token_ids) + len(sampling.banned_token_ids) + len(call.stop_token_ids)
    words = sum(_ENTRY_IDS + len(word) for word in sampling.bad_words)
    return len(call.tokens) + lists + words + _ENTRY_IDS * len(sampling.logit_bias)


class CallStream:
    """Slots of a verifier of the previous release, with one call of Generate per slot."""

    def __init__(self, verifier: RoundCaller) -> None:
        self.arrivals = Arrivals()
        self._verifier = verifier
        self._running: dict[int, asyncio.Task[None]] = {}
        self._credits: dict[int, int] = {}
        self._credited = asyncio.Event()

    def open(self, opening: Opening) -> None:
        """Call Generate."""
        self._credits[opening.slot] = opening.credit
        self._running[opening.slot] = asyncio.create_task(self._run(opening))

    def credit(self, slot: int, length: int) -> None:
        """Continue to read the slot's call."""
        if slot in self._credits:
            self._credits[slot] = length
            self._credited.set()

    def cancel(self, slot: int) -> None:
        """Cancel the call."""
        if slot in self._running:
            self._running[slot].cancel()

    async def close(self) -> None:
        """Cancel all calls."""
        await asyncio.gather(*map(cancel_and_wait, list(self._running.values())))

    async def _run(self, opening: Opening) -> None:
        slot = opening.slot
        try:
            error = await self._error(opening)
            if error is not None:
                self.arrivals.add((), {slot: error})
        finally:
            del self._running[slot], self._credits[slot]

    async def _error(self, opening: Opening) -> SpecdecError | None:
        """Read a call to its end; return the error if it ended without a finish."""
        timeout, finished = float("inf") if opening.timeout is None else opening.timeout, False
        try:
            async with aclosing(self._verifier.generate(opening.call, timeout)) as rounds:
                async for verified in rounds:
                    self.arrivals.add([(opening.slot, verified)], {})
                    finished = verified.finish is not None
                    if not finished:
                        await self._until_credited(opening.slot, verified.base_len + len(verified.tokens))
        except SpecdecError as error:
            return error
        except Exception as error:  # noqa: BLE001 - the slot's receiver must get the error
            return InternalError(f"a generation failed: {error!r}")
        return None if finished else NoVerifier(f"verifier {self._verifier.address} ended without finishing")

    async def _until_credited(self, slot: int, length: int) -> None:
        while self._credits[slot] <= length:
            self._credited.clear()
            await self._credited.wait()
