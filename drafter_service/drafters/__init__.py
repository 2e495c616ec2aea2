"""Room of the sources of drafts: each module implements the Drafter protocol of `sessions.drafter`, or a part of one.

A batch of sessions comes in, each with the number of tokens to compute; drafts of the complete sessions go out.
ModelDrafter drafts with a language model, or with the UniformModel in place of one; CountsDrafter with the counts of a
corpus; SourceDrafter with a source of `specdec.sources`, and HybridDrafter with such a source before a model. A new
kind is added here and to `app.load_drafter`.
"""
