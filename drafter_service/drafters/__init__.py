"""Sources of drafts: each module implements the Drafter protocol of `sessions.drafter`, or a part of it.

A drafter takes a batch of sessions, each with a number of tokens to compute, and drafts for the complete ones.
ModelDrafter drafts with a language model or UniformModel, CountsDrafter with counts of a corpus. SourceDrafter uses a
source of `specdec.sources`; HybridDrafter tries such a source before a model. FeatureDrafter drafts with a head of the
target, which `fed_head` runs on features from verifiers. A new kind is added here and to `app.load_drafter`.
"""
