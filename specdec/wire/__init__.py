"""Values that services exchange, and their translation to and from protobuf messages.

Values enter `to_pb` of a codec or a function `..._to_pb`, and messages leave; `from_pb` does the reverse and refuses
malformed messages. `generation` and `kv` are what gateway and verifier exchange; `session`, `features` and `draft` are
what verifier and drafter exchange. `params`, `tokens` and `logprobs` are parts of both, and `codec` derives a message
from the fields of its value.
"""
