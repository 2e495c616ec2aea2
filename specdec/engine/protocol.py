"""Interfaces of engines. `NativeEngine` implements them; a drafter may have another implementation."""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from torch import Tensor

from specdec.engine.batch import Chunk
from specdec.engine.kv.pool import KvMemory


class SequenceMemory(Protocol):
    """The sequences that an engine has admitted, and their memory."""

    @property
    def memory(self) -> KvMemory:
        """The memory of all sequences, in bytes."""

    def can_ever_admit(self, limit: int) -> bool:
        """Whether a sequence that may reach `limit` tokens fits in an empty engine."""

    def admit(self, session: str, limit: int, tokens: Sequence[int] = (), domain: str = "") -> bool:
        """Admit a sequence that begins with `tokens` and may reach `limit` tokens; False if there is no room now.

        The part of `tokens` that sequences of the same domain have computed is reused, except for the last token.
        """

    def reserve(self, session: str, length: int) -> bool:
        """Take memory for the first `length` tokens of a sequence; False if there is none now."""

    def release(self, session: str) -> None:
        """End the sequence."""

    def length(self, session: str) -> int:
        """Number of computed tokens of the sequence."""

    def truncate(self, session: str, length: int) -> None:
        """Keep the first `length` computed tokens and drop the rest."""


class Engine(SequenceMemory, Protocol):
    """A language model over the sequences that it has admitted; only one thread may call it."""

    vocab_size: int
    """Number of valid ids, 0..vocab_size-1."""
    context_length: int
    """Largest number of tokens in a sequence."""
    tokenizer_hash: str
    """Fingerprint of the tokenizer's vocabulary, from `specdec.sampling.vocabulary`."""

    def forward(self, chunks: Sequence[Chunk]) -> Tensor:
        """Run all chunks in one pass and append them to their sequences; on any error no length changes.

        Returns:
            Logits, float32 [Σ chunk.logits, vocab_size], in the order of the chunks: row i of a chunk's rows is the
            distribution after its i-th token with logits.
        """


@runtime_checkable
class PromptReader(Protocol):
    """An engine that needs the length of a sequence's prompt, such as an encoder-decoder, which encodes it."""

    encoder_decoder: bool
    """Whether it reads prompts with an encoder."""

    def read_prompt(self, session: str, prompt_len: int) -> None:
        """Set the length of a sequence's prompt, before any token is computed."""


@runtime_checkable
class PathKeeper(Protocol):
    """An engine that computes trees, and keeps one path of each."""

    def keep(self, session: str, base_len: int, path: Sequence[int]) -> None:
        """Keep the tokens at the indices `path` among those after the first `base_len`, as a chain."""
