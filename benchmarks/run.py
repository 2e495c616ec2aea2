"""One generation, as every peer reports it."""

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
    """A generation to make; it goes on past the model's end, unless that is in `stop`."""

    prompt: tuple[int, ...]
    tokens: int
    temperature: float = 0.0
    seed: int = 0
    gamma: int | None = None
    """Draft length; 0 is plain decoding, None the peer's own choice."""
    stop: tuple[int, ...] = ()
    """Ids that end it; only the engine in process looks at them."""
    policy: GammaPolicy = AUTO
    """How the system chooses where there is no length."""
    drafter: str = ""
    """Drafter that a verifier is asked to use; empty for that of its settings."""


MIXED = "mixed"
"""Half of the generations at temperature 0 and half at 1."""


def at_temperature(asks: Sequence[Ask], temperature: str) -> list[Ask]:
    """The asks at a temperature, or in turn at those of MIXED."""
    chosen = (0.0, 1.0) if temperature == MIXED else (float(temperature),)
    return [replace(ask, temperature=chosen[number % len(chosen)]) for number, ask in enumerate(asks)]


@dataclass(frozen=True, slots=True)
class Run:
    """One generation as the caller saw it; times are in seconds."""

    tokens: tuple[int, ...]
    seconds: float
    first: float = 0.0
    """Seconds to the first token."""
    opening: int = 1
    """Number of tokens that came first, together."""
    rounds: int = 0
    accepted: int = 0
    rejected: int = 0
    """Number of rounds that kept less than the whole draft."""
    gaps: tuple[float, ...] = ()
    """Seconds between one round, as the caller saw it, and the next."""
    verdicts: tuple[tuple[int, int], ...] = ()
    """Tokens drafted and accepted in each round, of the engine in process."""

    def after(self, seconds: float) -> int:
        """Number of tokens that came more than so many seconds after the request."""
        times = accumulate(self.gaps, initial=self.first)
        return sum(at > seconds for at in times) + (self.opening - 1) * (self.first > seconds)

    @property
    def speed(self) -> float:
        """Tokens a second, the prompt's time included."""
        return len(self.tokens) / self.seconds

    @property
    def pace(self) -> float:
        """Tokens per second after the first round, which is mostly the prompt's."""
        return (len(self.tokens) - self.opening) / sum(self.gaps)

    @property
    def round_seconds(self) -> float:
        """Mean seconds of a round, without the first."""
        return sum(self.gaps) / (self.rounds - 1)


@dataclass(frozen=True, slots=True)
class Slice:
    """Generations that were asked for at once, or by streams that ask again when an answer has ended."""

    seconds: float
    """From the first request to the last token, or from when each stream had a token until one had nothing to ask."""
    runs: Sequence[Run]
    outside: int = 0
    """Tokens that came before or after that."""

    @property
    def speed(self) -> float:
        """Tokens a second of all together."""
        return (sum(len(run.tokens) for run in self.runs) - self.outside) / self.seconds


def call_of(ask: Ask) -> GenerationCall:
    """RPC 1 of the ask, without use of the prefix cache."""
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
    """Something that generates."""

    def generate(self, ask: Ask) -> Run:
        """Generate an answer while nothing else runs."""


def gaps_of(times: Sequence[float]) -> tuple[float, ...]:
    """Differences of neighbours."""
    return tuple(after - before for before, after in pairwise(times))


def pace(times: Sequence[float], counts: Sequence[int]) -> float:
    """Tokens per second after the first round, by the time and the number of tokens of each round."""
    return sum(counts[1:]) / (times[-1] - times[0]) if len(times) > 1 else math.inf
