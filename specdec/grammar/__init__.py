"""Grammars as automata over tokens: the compiler turns a `Grammar` into masks of the tokens allowed next.

`compiler` compiles a grammar with llguidance. `tokens` converts a model's vocabulary to the automaton's form.
`thinking` puts a model's thinking before a grammar, and `budget` limits it. `state` computes the masks at every
position of a draft. `mistakes` locates the error in a grammar that cannot be compiled.
"""
