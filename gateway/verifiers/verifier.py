"""What the gateway needs of a verifier replica; `VerifierClient` has it over gRPC, tests in memory."""

from collections.abc import AsyncGenerator, Sequence
from typing import Protocol

from specdec.wire.generation import GenerationCall, Round, VerifierInfo
from specdec.wire.kv import KvSpan


class Verifier(Protocol):
    """One replica, at one address."""

    address: str

    async def info(self, timeout: float) -> VerifierInfo:
        """The facts about its model, asked anew.

        Raises:
            Draining: it is shutting down.
            DeadlineExceeded: it does not answer within `timeout` seconds.
            NoVerifier: it cannot be reached.
        """

    def generate(self, call: GenerationCall, timeout: float) -> AsyncGenerator[Round]:
        """The rounds of one generation; closing the iterator cancels the generation at the verifier.

        Raises:
            NoVerifier: the connection was lost.
            DeadlineExceeded: `timeout` seconds went by.
            SpecdecError: the verifier refused.
        """

    async def close(self) -> None:
        """Close the connection."""


class BlockVerifier(Verifier, Protocol):
    """A replica whose KV blocks can be copied out and in; the gateway never looks into a block's value.

    Every method raises what `generate` raises.
    """

    async def find_kv(self, tokens: Sequence[int], cache_salt: str) -> int:
        """How many of `tokens`, from the first on, have their keys and values at the verifier."""

    async def export_kv(self, start: int, tokens: Sequence[int], cache_salt: str) -> bytes:
        """The value of the block of `tokens[start:]`; empty when the verifier does not have it."""

    async def restore_kv(self, span: KvSpan, values: Sequence[bytes]) -> tuple[int, str]:
        """Give the verifier the values of a span, one for each block.

        Returns:
            How many tokens it has then, and why it took no more; the reason is empty when it took all.
        """
