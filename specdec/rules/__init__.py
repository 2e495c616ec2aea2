"""The mathematics of speculative decoding: pure functions on tensors and frozen values, without input or output.

Logits and sampling parameters enter `sampling`, which makes distributions. A drafter's distributions enter `proposal`,
and drafts leave it, each with the distribution it was drawn from. Target distributions and drafts enter `verification`
(or `tree_verification`), and verdicts leave it: the tokens that a round commits. Every random number comes from `rng`
and depends on nothing but seed, position and purpose. `gamma` says what a draft brings, `allotment` how much each
session of a batch drafts, and `sizing` how many replicas to run.
"""
