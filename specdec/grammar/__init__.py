"""Grammars as automata over tokens: a `Grammar` enters the compiler, and masks of the tokens that may follow leave it.

`compiler` turns a grammar into a state, with the library llguidance. `tokens` has a model's vocabulary as automata read
it, and `thinking` puts before a grammar what a model thinks.
`state` has the masks at every position of a draft. `mistakes` says what is wrong with a grammar that cannot be
compiled.
"""
