"""Models that one gateway serves, each with its own tokenizer, verifiers and fingerprint.

The settings define the models. The `model` of a request or of its session selects a `ServedModel`.
"""
