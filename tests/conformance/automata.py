"""Grammars over the ids of a tiny tokenizer, each written by hand as an automaton.

The product compiles the grammar's text with its grammar library; the expected laws use the automaton.
"""

from collections.abc import Mapping
from functools import cache
from types import MappingProxyType

from specdec.grammar.compiler import GrammarCompiler
from specdec.grammar.state import TokenMasks
from specdec.sampling.grammar import Grammar, GrammarKind
from tests.support.tiny_models import make_tokenizer

END = 0
BANG, QUOTE, HASH, DOLLAR = 1, 2, 3, 4
"""The end token, and the ids of four characters."""
ENDED = -1
"""State after the end token. Any id may follow, and none of them is kept."""

Automaton = dict[int, dict[int, int]]
"""For each state, a map from each allowed id to the next state."""

LOOP = Grammar(GrammarKind.REGEX, '!(#|!")*|"#?')
"""A loop that may end after each iteration, and a branch after which only the end token is allowed."""
_WIDEST = 8
"""Largest vocabulary size in these tests."""


def _any(state: int, others: Mapping[int, int] = MappingProxyType({})) -> dict[int, int]:
    """Return a state in which every id leads to `state`, except those in `others`."""
    return {**dict.fromkeys(range(_WIDEST), state), **others}


BUDGET = Grammar(GrammarKind.ANY, "*", '"!', 2)
"""A thinking block that the prompt has opened. `"!` closes it and is forced after two tokens."""
_OVER = 6
AUTOMATA: dict[Grammar, Automaton] = {
    BUDGET: {
        0: _any(1, {QUOTE: 2}),
        1: _any(3, {QUOTE: 4}),
        2: _any(3, {QUOTE: 4, BANG: _OVER}),
        3: {QUOTE: 5},
        4: {BANG: _OVER},
        5: {BANG: _OVER},
        _OVER: _any(_OVER),
    },
    LOOP: {
        0: {BANG: 1, QUOTE: 3},
        1: {HASH: 1, BANG: 2, END: ENDED},
        2: {QUOTE: 1},
        3: {HASH: 4, END: ENDED},
        4: {END: ENDED},
    },
}


def may_follow(grammar: Grammar, output: tuple[int, ...], vocab_size: int) -> set[int]:
    """Return the ids that the automaton allows. If `output` does not match the grammar, return all ids."""
    automaton, state = AUTOMATA[grammar], 0
    for token in output:
        state = automaton.get(state, {}).get(token, ENDED)
    return set(automaton.get(state, range(vocab_size)))


@cache
def compiled(grammar: Grammar, vocab_size: int) -> TokenMasks:
    """Return the product's own state of a grammar over the ids of a tiny tokenizer."""
    content = make_tokenizer(vocab_size).backend_tokenizer.to_str()
    compiler = GrammarCompiler.of_tokenizer(content, vocab_size, (END,))
    assert compiler is not None
    return compiler.compile(grammar)
