"""Room of the sources of drafts that need no model: each looks up what tends to follow, and samples nothing.

Committed tokens of one sequence come in, guesses of the next ones go out. The drafter serves them to any verifier, and
a verifier asks them without a hop. `source` is what they have in common; `SourceMaker` makes one by its name.
"""
