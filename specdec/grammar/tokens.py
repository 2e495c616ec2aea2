"""Tokens of a model as grammars see them: text in bytes, and control tokens without text."""

from collections.abc import Collection

from llguidance import LLTokenizer
from tokenizers import Tokenizer

from specdec.sampling.grammar import token_name

_LEAD = "\n"
"""Prefix for tokenizers that insert a space before the first word."""


class GrammarTokens:
    """Vocabulary of a fast Hugging Face tokenizer.

    A text that has the name of a special token is written letter by letter, and never with that token, so that what is
    forced is what the automaton allows. An added token that is not special is text like any other.
    """

    bos_token_id = None

    def __init__(self, content: str, vocab_size: int, end_ids: Collection[int]) -> None:
        """Read the content of a tokenizer.json.

        Raises:
            ValueError: the bytes of the tokenizer's tokens are unknown.
        """
        self._letters = LLTokenizer(content, slices=[])
        self._tokenizer = Tokenizer.from_str(content)
        self._tokenizer.encode_special_tokens = True
        added = self._tokenizer.get_added_tokens_decoder()
        known = set(self._tokenizer.get_vocab().values())
        special = {index for index, token in added.items() if token.special} | set(end_ids)
        self.special_token_ids = tuple(sorted(index for index in special if index < vocab_size))
        tokens = [self._bytes(index) if index in known else b"" for index in range(vocab_size)]
        for index, token in added.items():
            if index < vocab_size:
                tokens[index] = (token_name(token.content) if index in special else token.content).encode()
        self.tokens = tuple(tokens)
        self.special = tuple(added[index].content for index in special if index in added)
        """Names of the special tokens."""
        self.eos_token_id = min(end_ids, default=0)
        self._lead = self._encode(_LEAD)
        self._no_text = frozenset(self.special_token_ids)

    def __call__(self, text: str | bytes) -> list[int]:
        """Return tokens that spell the text: the tokenizer's own if they spell it exactly, else the longest matches."""
        written = text if isinstance(text, str) else text.decode()
        ids = self._encode(written)
        if self._spell(ids, written):
            return ids
        ids = self._encode(_LEAD + written)
        rest = ids[len(self._lead) :]
        if ids[: len(self._lead)] == self._lead and self._spell(rest, written):
            return rest
        return list(self._letters.greedy_tokenize(written))

    def _encode(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def _spell(self, ids: Collection[int], text: str) -> bool:
        if any(index >= len(self.tokens) or index in self._no_text for index in ids):
            return False
        return b"".join(self.tokens[index] for index in ids) == text.encode()

    def _bytes(self, index: int) -> bytes:
        return bytes(self._letters.decode_bytes([index]))
