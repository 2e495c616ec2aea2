"""What an engine can do. The native engine is one; a drafter may bring another."""

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

from specdec.engine.batch import Chunk
from specdec.engine.kv_pool import KvMemory


class SequenceMemory(Protocol):
    """The memory that sequences take: which of them are in, and how many tokens of each are computed."""

    @property
    def memory(self) -> KvMemory:
        """What the sequences take, in bytes."""

    def can_ever_admit(self, limit: int) -> bool:
        """Whether a sequence that may reach `limit` tokens fits when there is no other."""

    def admit(self, session: str, limit: int, tokens: Sequence[int] = (), domain: str = "") -> bool:
        """Let in a sequence that begins with `tokens` and may reach `limit`; False when there is no room now.

        What sequences of the same domain have computed of `tokens` counts as computed at once, except the last token.
        """

    def reserve(self, session: str, length: int) -> bool:
        """Have memory for the first `length` tokens of a sequence; False when there is none now."""

    def release(self, session: str) -> None:
        """Forget the sequence."""

    def length(self, session: str) -> int:
        """Tokens of the sequence that are computed."""

    def truncate(self, session: str, length: int) -> None:
        """Keep what was computed of the first `length` tokens; nothing behind them is ever read again."""


class Engine(SequenceMemory, Protocol):
    """A language model over the sequences it has let in; one thread owns it."""

    vocab_size: int
    """Valid ids are 0..vocab_size-1."""
    context_length: int
    """Most tokens of a sequence."""
    tokenizer_hash: str

    def forward(self, chunks: Sequence[Chunk]) -> Tensor:
        """Run all chunks in one pass and append them to their sequences; on any error no length changes.

        Returns:
            Logits, float32 [Σ chunk.logits, vocab_size], in the order of the chunks: row i of a chunk's rows is the
            distribution after its i-th kept token.
        """
