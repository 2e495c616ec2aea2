"""The KV tier: blocks of keys and values kept in a Redis of their own, so that they outlive their verifier.

The calls and rounds of a verifier pass through `tier`. Before a call, `reader` restores the stored blocks of its
tokens into the verifier where that is faster than computing them; behind it, `writer` stores new blocks. Values are
opaque here, and any block may be lost: a miss costs time, and never an error.
"""
