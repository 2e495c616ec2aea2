"""What an engine can do. `NativeEngine` is one engine; a drafter may bring another."""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from torch import Tensor

from specdec.engine.batch import Chunk
from specdec.engine.kv.pool import KvMemory


class SequenceMemory(Protocol):
    """The sequences that an engine has admitted, and the memory that they take."""

    @property
    def memory(self) -> KvMemory:
        """The memory of all sequences, in bytes."""

    def can_ever_admit(self, limit: int) -> bool:
        """Whether a sequence that may reach `limit` tokens fits into an empty engine."""

    def admit(self, session: str, limit: int, tokens: Sequence[int] = (), domain: str = "") -> bool:
        """Admit a sequence that begins with `tokens` and may reach `limit`; False when there is no room now.

        The part of `tokens` that sequences of the same domain have computed is reused, except for the last token.
        """

    def reserve(self, session: str, length: int) -> bool:
        """Take memory for the first `length` tokens of a sequence; False when there is none now."""

    def release(self, session: str) -> None:
        """End the sequence."""

    def length(self, session: str) -> int:
        """Number of tokens of the sequence that are computed."""

    def truncate(self, session: str, length: int) -> None:
        """Keep the first `length` computed tokens and forget the rest."""


class Engine(SequenceMemory, Protocol):
    """A language model over the sequences that it has admitted; only one thread calls it."""

    vocab_size: int
    """Valid ids are 0..vocab_size-1."""
    context_length: int
    """Largest number of tokens in a sequence."""
    tokenizer_hash: str
    """Fingerprint of the tokenizer's vocabulary, by `specdec.sampling.vocabulary`."""

    def forward(self, chunks: Sequence[Chunk]) -> Tensor:
        """Run all chunks in one pass and append them to their sequences; on any error no length changes.

        Returns:
            Logits, float32 [Σ chunk.logits, vocab_size], in the order of the chunks: row i of a chunk's rows is the
            distribution after its i-th token with logits.
        """


@runtime_checkable
class PromptReader(Protocol):
    """An engine that must know which tokens of a sequence are its prompt, as an encoder-decoder reads it apart."""

    encoder_decoder: bool
    """Whether it reads prompts with an encoder."""

    def read_prompt(self, session: str, prompt_len: int) -> None:
        """Set how many of a sequence's tokens are its prompt, before any is computed."""


@runtime_checkable
class PathKeeper(Protocol):
    """An engine that computes trees: of each it keeps a path."""

    def keep(self, session: str, base_len: int, path: Sequence[int]) -> None:
        """Keep the tokens at the indices `path` of those behind the first `base_len`, as if they had been a chain."""
