"""Room of the models that one gateway serves, each with a tokenizer, verifiers and a fingerprint of its own.

The settings enter; a request's `model`, or that of its session, leads to the `ServedModel` that serves it.
"""
