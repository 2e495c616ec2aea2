"""Blocks of keys and values that leave the process and return.

A gateway finds, exports and restores the KV of a prefix here, by its tokens and its cache salt. Exported values leave
with a frame that names their model and their tokens; a restored value is checked against it before the engine takes it.
"""
