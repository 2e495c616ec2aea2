"""A verifier as the gateway sees it: its facts, a call, its rounds; how they travel is another module's business."""

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from typing import Protocol

from specdec.rules.logprobs import TokenLogprobs
from specdec.rules.params import FinishReason, Origin, SamplingParams, Speculation


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
    prefill_rate: float = 0.0
    """Prompt tokens computed in a second, as measured; 0 when unknown."""


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
class KvSpan:
    """Consecutive blocks of one length."""

    tokens: Sequence[int]
    """The sequence up to the end of the last one."""
    cache_salt: str
    start: int
    block_tokens: int


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


class BlockVerifier(Verifier, Protocol):
    """A replica whose keys and values can be moved, as values that mean nothing here; each raises what `info` does."""

    async def find_kv(self, tokens: Sequence[int], cache_salt: str) -> int:
        """How many of `tokens`, from the first, have keys and values there."""

    async def export_kv(self, start: int, tokens: Sequence[int], cache_salt: str) -> bytes:
        """The value of the block tokens[start:]; empty when it is not there."""

    async def restore_kv(self, span: KvSpan, values: Sequence[bytes]) -> tuple[int, str]:
        """Give it values, one a block: how many tokens it has then, and why no more, empty when it took all."""
