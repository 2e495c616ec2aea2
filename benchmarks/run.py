"""One generation, in the form reported by every peer."""

import math
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import Protocol

from specdec.planning.gamma_policy import AUTO, GammaPolicy
from specdec.rules.speculation import Mode, Speculation
from specdec.sampling.params import SamplingParams
from specdec.wire.generation import GenerationCall


@dataclass(frozen=True, slots=True)
class Ask:
    """A generation to request. It continues past the model's end tokens, unless they are in `stop`."""

    prompt: tuple[int, ...]
    tokens: int
    temperature: float = 0.0
    seed: int = 0
    gamma: int | None = None
    """Draft length. 0 is plain decoding, None the peer's own choice."""
    stop: tuple[int, ...] = ()
    """Ids that end the generation. Only the in-process engine uses them."""
    policy: GammaPolicy = AUTO
    """Policy of the system if no draft length is given."""
    drafter: str = ""
    """Drafter requested from a verifier, or "" for that of its settings."""


MIXED = "mixed"
"""Half of the generations at temperature 0 and half at 1."""


def at_temperature(asks: Sequence[Ask], temperature: str) -> list[Ask]:
    """Return the asks at a temperature, or alternating between those of MIXED."""
    chosen = (0.0, 1.0) if temperature == MIXED else (float(temperature),)
    return [replace(ask, temperature=chosen[number % len(chosen)]) for number, ask in enumerate(asks)]


@dataclass(frozen=True, slots=True)
class Run:
    """One generation as observed by the caller. Times are in seconds."""

    tokens: tuple[int, ...]
    seconds: float
    first: float = 0.0
    """Seconds to the first token."""
    opening: int = 1
    """Number of tokens in the first piece."""
    rounds: int = 0
    accepted: int = 0
    rejected: int = 0
    """Number of rounds with a rejected draft token."""
    gaps: tuple[float, ...] = ()
    """Seconds between successive rounds, as observed by the caller."""
    verdicts: tuple[tuple[int, int], ...] = ()
    """Tokens drafted and accepted in each round, reported by the in-process engine."""

    def after(self, seconds: float) -> int:
        """Return the number of tokens received more than `seconds` after the request."""
        times = accumulate(self.gaps, initial=self.first)
        return sum(at > seconds for at in times) + (self.opening - 1) * (self.first > seconds)

    @property
    def speed(self) -> float:
        """Tokens a second, including the prompt's time."""
        return len(self.tokens) / self.seconds

    @property
    def pace(self) -> float:
        """Tokens a second after the first round, which is mostly the prompt's."""
        return (len(self.tokens) - self.opening) / sum(self.gaps)

    @property
    def round_seconds(self) -> float:
        """Mean seconds of a round, without the first."""
        return sum(self.gaps) / (self.rounds - 1)


@dataclass(frozen=True, slots=True)
class Slice:
    """Generations requested at once, or by streams that send the next request when an answer has ended."""

    seconds: float
    """Seconds from the first request to the last token.

    With streams: from the time all of them had a token until one had no more asks.
    """
    runs: Sequence[Run]
    outside: int = 0
    """Number of tokens outside that time."""

    @property
    def speed(self) -> float:
        """Tokens a second of all generations together."""
        return (sum(len(run.tokens) for run in self.runs) - self.outside) / self.seconds


def call_of(ask: Ask) -> GenerationCall:
    """Return the call of RPC 1 for the ask, without use of the prefix cache."""
    mode = Mode.OFF if ask.gamma == 0 else Mode.REJECTION
    return GenerationCall(
        session_id=secrets.token_hex(8),
        epoch=1,
        tokens=ask.prompt,
        prompt_len=len(ask.prompt),
        sampling=SamplingParams(temperature=ask.temperature, seed=ask.seed),
        max_tokens=ask.tokens,
        stop_token_ids=(),
        speculation=Speculation(mode=mode, gamma=ask.gamma or None, drafter=ask.drafter, policy=ask.policy),
        cache_salt=secrets.token_hex(8),
    )


class Peer(Protocol):
    """A system that generates."""

    def generate(self, ask: Ask) -> Run:
        """Generate an answer while nothing else runs."""


def gaps_of(times: Sequence[float]) -> tuple[float, ...]:
    """Return the differences of neighbouring times."""
    return tuple(after - before for before, after in pairwise(times))


def pace(times: Sequence[float], counts: Sequence[int]) -> float:
    """Return the tokens a second after the first round, from the time and the number of tokens of each round."""
    return sum(counts[1:]) / (times[-1] - times[0]) if len(times) > 1 else math.inf
