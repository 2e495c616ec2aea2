"""Grammars as automata over tokens: a `Grammar` enters the compiler, and masks of the tokens that may follow leave it.

`compiler` turns a grammar into a state, with the library llguidance. `tokens` has a model's vocabulary as automata read
it. `state` has the masks at every position of a draft. `worker` compiles what a stranger sent in a process of its own,
which may die of it.
"""
