"""The algorithm of speculative decoding: pure functions on tensors and frozen values, without input or output.

`proposal` turns a drafter's distributions into drafts, each with the distribution it was drawn from. `verification`
turns target distributions and drafts into verdicts: the tokens that a round commits. Every random number comes from
`rng` and depends only on seed, position and purpose. `speculation` holds the options of a request.
"""
