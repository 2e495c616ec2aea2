"""A verifier as the gateway sees it: its facts, a call, its rounds; how they travel is another module's business."""

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from typing import Protocol

from specdec.logprobs import TokenLogprobs
from specdec.params import FinishReason, Origin, SamplingParams, Speculation


@dataclass(frozen=True, slots=True)
class DrafterState:
    """One drafter as its verifier sees it."""

    address: str
    state: str
    """"ready", "connecting" or "refused: ..."."""
    model: str
    """Empty until known."""


@dataclass(frozen=True, slots=True)
class VerifierInfo:
    """The target model and its limits."""

    model: str
    tokenizer_hash: str
    vocab_size: int
    """Ids below this are valid."""
    context_length: int
    """Longest sequence, prompt and output together."""
    end_token_ids: tuple[int, ...]
    gamma_max: int
    system_fingerprint: str
    """Of weights, dtype and code: a generation may move between verifiers that share it."""
    drafters: tuple[DrafterState, ...] = ()


@dataclass(frozen=True, slots=True)
class Call:
    """One generation, or the rest of one."""

    session_id: str
    epoch: int
    tokens: Sequence[int]
    """Prompt and committed output."""
    prompt_len: int
    sampling: SamplingParams
    max_tokens: int
    """Output length, committed tokens included, at which the generation ends."""
    stop_token_ids: tuple[int, ...]
    speculation: Speculation
    logprobs: int | None = None
    """How many likely tokens are reported beside each committed one; None is no logprobs."""
    priority: int = 0
    """Less goes first."""
    cache_salt: str = ""
    """Only generations of one salt share computed prefixes."""


@dataclass(frozen=True, slots=True)
class VerifiedRound:
    """One draft and its verdict."""

    base_len: int
    """Committed length before it."""
    tokens: tuple[int, ...]
    origins: tuple[Origin, ...]
    draft: tuple[int, ...] = ()
    accepted: int = 0
    finish: FinishReason | None = None
    """Set on the last round."""
    fallback_reason: str = ""
    """Why a round that may speculate had no draft."""
    draft_seconds: float = 0.0
    queue_seconds: float = 0.0
    verify_seconds: float = 0.0
    logprobs: tuple[TokenLogprobs, ...] = ()
    """Of `tokens`; empty when nobody asked."""


class Verifier(Protocol):
    """One replica."""

    address: str

    async def info(self, timeout: float) -> VerifierInfo:
        """Ask for its facts.

        Raises:
            Draining: it is shutting down.
            DeadlineExceeded: it does not answer in time.
            NoVerifier: it is not there.
        """

    def generate(self, call: Call, timeout: float) -> AsyncGenerator[VerifiedRound]:
        """Its rounds; closing the iterator cancels the generation there.

        Raises:
            NoVerifier: it was lost.
            SpecdecError: it refused.
        """

    async def close(self) -> None:
        """Let the connection go."""
