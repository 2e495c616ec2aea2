"""The generations of this process.

A checked `GenerationCall` enters; `generations` gives it a session, and `runs` makes sure that a session of the gateway
has one owner at a time. `session` is the algorithm: propose, verify, cut, commit. `Round` values leave, one for each
verdict, until one has a finish reason.
"""
