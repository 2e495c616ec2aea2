"""The algorithm of speculative decoding: pure functions on tensors and frozen values, without input or output.

A drafter's distributions enter `proposal`, and drafts leave it, each with the distribution it was drawn from. Target
distributions and drafts enter `verification`, and verdicts leave it: the tokens that a round commits. Every random
number comes from `rng` and depends on nothing but seed, position and purpose. `speculation` is what a request asks.
"""
