"""The values that services exchange, and their protobuf messages.

Values enter functions named `..._to_pb`, and messages leave; functions named `..._from_pb` do the reverse and refuse
malformed messages. `generation` and `kv` are what gateway and verifier exchange; `session` and `draft` are what
verifier and drafter exchange. `params`, `tokens` and `logprobs` are parts of both, and `codec` derives a message from
the fields of its value.
"""
