"""Keys and values on the host: one contiguous slab for each session, read as views by PyTorch's own attention.

`backend` is what the engine opens: slabs for sessions, and passes that attend to one session after the other. `slabs`
has the slabs and the store that counts their memory. Nothing is shared between slabs: a common beginning is copied.
"""
