"""Compiles grammars for one tokenizer and caches the result. Thread-safe."""

import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Self

import structlog
from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper

from specdec.errors import FieldInvalid
from specdec.grammar.budget import BudgetState
from specdec.grammar.state import GrammarState, TokenMasks
from specdec.grammar.thinking import GrammarVocabulary, behind, thinking_of
from specdec.grammar.tokens import GrammarTokens
from specdec.sampling.grammar import Grammar, GrammarKind, token_name

_log = structlog.get_logger()

_REMEMBERED = 64
"""Maximum number of compiled grammars in the cache."""
_SERIALIZE: Mapping[GrammarKind, Callable[[str], str]] = {
    GrammarKind.JSON_SCHEMA: LLMatcher.grammar_from_json_schema,
    GrammarKind.REGEX: LLMatcher.grammar_from_regex,
    GrammarKind.LARK: LLMatcher.grammar_from_lark,
}


_LIMITS = LLParserLimits(max_items_in_row=300, step_max_items=10_000, initial_lexer_fuel=250_000)
"""Limits below the library's defaults. They keep the time of one mask under 0.1 s."""


class GrammarCompiler:
    """Compiles grammars over one vocabulary. An LRU cache keyed by digest holds the results."""

    def __init__(
        self, tokenizer: LLTokenizer, vocabulary: GrammarVocabulary, vocab_size: int, end_ids: Collection[int]
    ) -> None:
        """Compile for a tokenizer.

        Args:
            vocabulary: tokens of the tokenizer.
            vocab_size: width of the logits.
            end_ids: ids allowed where the grammar is complete.
        """
        self._vocabulary = vocabulary
        self._special = frozenset(vocabulary.special)
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._end_ids = frozenset(end_ids)
        self._compiled: OrderedDict[str, LLMatcher] = OrderedDict()
        self._lock = threading.Lock()

    @classmethod
    def of_tokenizer(cls, content: str | None, vocab_size: int, end_ids: Collection[int]) -> Self | None:
        """Create a compiler from the content of a Hugging Face tokenizer.json. Return None if it cannot be used."""
        if content is None:
            return None
        try:
            tokens = GrammarTokens(content, vocab_size, end_ids)
            tokenizer = LLTokenizer(TokenizerWrapper(tokens), eos_token=sorted(end_ids) or None)
        except Exception as error:  # noqa: BLE001 - the tokenizers library raises nothing more particular
            _log.warning("grammars_unsupported", error=str(error))
            return None
        return cls(tokenizer, tokens, vocab_size, end_ids)

    @classmethod
    def of_bytes(cls, special: Sequence[str] = ()) -> Self:
        """Create a compiler for a byte vocabulary. Id 256 is the end token; ids of special tokens follow."""
        tokens = _Bytes(special)
        return cls(LLTokenizer(TokenizerWrapper(tokens)), tokens, len(tokens.tokens), (256,))

    def compile(self, grammar: Grammar) -> TokenMasks:
        """Return the state of a grammar before the first token.

        Raises:
            FieldInvalid: the grammar cannot be compiled. The message gives the reason.
        """
        if grammar.budget is None:
            return self._state(grammar)
        inner = None if grammar.kind is GrammarKind.ANY else self._state(replace(grammar, budget=None))
        thinking = thinking_of(grammar.behind, grammar.budget, self._vocabulary)
        return BudgetState(inner, thinking, self._vocab_size)

    def _state(self, grammar: Grammar) -> GrammarState:
        digest = grammar.digest
        with self._lock:
            known = self._compiled.get(digest)
        # The library compiles without the interpreter's lock, for up to seconds.
        matcher = known or self._matcher(grammar)
        with self._lock:
            self._compiled[digest] = matcher
            self._compiled.move_to_end(digest)
            if len(self._compiled) > _REMEMBERED:
                self._compiled.popitem(last=False)
            return GrammarState(matcher.deep_copy(), self._vocab_size, self._end_ids)

    def _matcher(self, grammar: Grammar) -> LLMatcher:
        try:
            source = _SERIALIZE[grammar.kind](grammar.text)
            if grammar.behind:
                source = behind(grammar.behind, source, self._special)
            matcher = LLMatcher(self._tokenizer, source, log_level=0, limits=_LIMITS)
        except ValueError as error:  # a schema that is no JSON
            raise FieldInvalid(str(error), "grammar") from error
        if matcher.is_error():
            raise FieldInvalid(matcher.get_error(), "grammar")
        return matcher


class _Bytes:
    """Byte-level tokenizer with the interface that llguidance requires."""

    eos_token_id = 256
    bos_token_id = None

    def __init__(self, special: Sequence[str]) -> None:
        names = (token_name(name).encode() for name in special)
        self.tokens = (*(bytes([value]) for value in range(256)), b"<|end|>", *names)
        self.special_token_ids = tuple(range(256, len(self.tokens)))
        self.special = tuple(special)

    def __call__(self, text: str | bytes) -> list[int]:
        return list(text.encode() if isinstance(text, str) else text)
