"""Random texts of a grammar over bytes."""

import random

from specdec.grammar.compiler import GrammarCompiler
from specdec.sampling.grammar import Grammar

END = 256
ENDING = frozenset(b'"}],:0123456789')
"""Bytes that bring a text closer to its end."""
LONGEST = 600
"""Length in bytes at which a text is given up."""

compiler = GrammarCompiler.of_bytes()


def walk(grammar: Grammar, seed: int) -> str | None:
    """Draw a random text of a grammar. Return None if it gets too long or cannot be completed."""
    dice, state, output = random.Random(seed), compiler.compile(grammar), list[int]()
    while len(output) < LONGEST:
        (mask,) = state.masks(output)
        assert mask is not None
        allowed = [8 * at + bit for at, byte in enumerate(mask) for bit in range(8) if byte >> bit & 1]
        if not allowed:
            return None
        if END in allowed and dice.random() < 0.5:
            return bytes(output).decode()
        allowed = [token for token in allowed if token != END] or allowed
        ending = [token for token in allowed if token in ENDING]
        token = dice.choice(ending if ending and dice.random() < 0.7 else allowed)
        if token == END:
            return bytes(output).decode()
        output.append(token)
    return None
