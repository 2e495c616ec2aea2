"""KV tier: stores blocks of keys and values in a separate Redis, so that they outlive their verifier.

The calls and rounds of a verifier pass through `tier`. Before a call, `reader` restores the stored blocks of its
tokens into the verifier if that is faster than computing them. After commits, `writer` stores new blocks. Values are
opaque here, and any block may be lost: a miss costs time but never causes an error.
"""
