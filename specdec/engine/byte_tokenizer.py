"""A tokenizer as a map between bytes and ids, to pass text from another tokenizer's tokens to its model."""

from collections.abc import Collection

from llguidance import LLTokenizer
from tokenizers import Tokenizer

from specdec.sampling.vocabulary import Vocabulary


class ByteTokenizer:
    """A fast tokenizer of Hugging Face over bytes."""

    def __init__(self, content: str, vocab_size: int, end_ids: Collection[int]) -> None:
        """Read the content of a tokenizer.json.

        Raises:
            ValueError: the bytes of the tokenizer's tokens are unknown.
        """
        plain = Tokenizer.from_str(content)
        ends = sorted(end_ids)
        self._tokenizer = LLTokenizer(content, n_vocab=vocab_size, eos_token=ends or None, slices=[])
        known = set(plain.get_vocab().values())
        special = frozenset(index for index in known if self._tokenizer.is_special_token(index))
        tokens = tuple(self._tokenizer.decode_bytes([index]) if index in known else b"" for index in range(vocab_size))
        self.vocabulary = Vocabulary(tokens, special)
        self.beginning: tuple[int, ...] = tuple(plain.encode("").ids) or tuple(ends[:1]) or (0,)
        """Tokens before every text: the tokenizer's own prefix, or else an end token, as between training texts."""

    def encode(self, text: bytes) -> list[int]:
        """Encode a text; an incomplete character at its end is encoded byte by byte."""
        ids: list[int] = self._tokenizer.tokenize_bytes(text)
        return ids
