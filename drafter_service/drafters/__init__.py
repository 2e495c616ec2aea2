"""Room of the sources of drafts: each module implements the Drafter protocol of `sessions.drafter`, or a part of one.

A batch of sessions comes in, each with the number of tokens to compute; one draft token per complete session goes out.
ModelDrafter drafts with a language model: the native engine or the n-gram model, which is made of Counts. PromptLookup
drafts without a model. A new source is added here and to `app.load_drafter`.
"""
