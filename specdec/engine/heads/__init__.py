"""Draft heads: small models that draft from the target's hidden states, and an engine that runs one beside its target.

`config` reads the options of a checkpoint folder, `checkpoint` its weights, and `eagle3` is the model; `medusa` is both
for Medusa heads. `pending` holds the states that the head has not read, and `head_kv` its keys and values. `sequences`
drafts from both. `headed` is the native engine with a head, and `fusing` the one that feeds a head in a drafter.
"""
