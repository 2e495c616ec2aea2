"""Session store: the tokens of every session, and the leases of their owners.

Input is session ids, token ids and opaque bytes; output is frozen values (`values`) or errors. `sessions` is the
contract. `redis_sessions` implements it on Redis or Valkey with one Lua script per operation (`lua`, `scripts/`), each
with the checksums of `checked_scripts`. `redis_client` opens the connections, `pins` stores the last verifier of each
session, and `check` checks whether a server can hold sessions.
"""
