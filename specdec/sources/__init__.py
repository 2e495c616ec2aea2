"""Draft sources that need no model: each looks up likely continuations and samples nothing.

A source reads the committed tokens of one sequence and guesses the next ones. A drafter serves sources to any verifier;
a verifier can also run them in its own process. `source` holds their protocol, and `SourceMaker` creates one by name.
"""
