"""The session store: the tokens of every session, and who may append to them.

Session ids, token ids and opaque bytes enter; frozen values (`values`) or errors leave. `sessions` is the contract,
`redis_sessions` keeps it on Redis or Valkey with one Lua script for each operation (`lua`, `scripts/`), each with the
checksums of `checked_scripts`, and `redis_client` opens the connections. `pins`
remembers which verifier served a session last, and `check` tells whether a server is fit for sessions.
"""
