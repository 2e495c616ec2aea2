"""A draft head in the process of a target on vLLM. Nothing here imports vLLM.

`arguments` says which layers vLLM taps, `states` is what a pass hands out, and `drafts` is the head.
"""
