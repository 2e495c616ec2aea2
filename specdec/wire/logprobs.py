"""Translation of a round's log probabilities to and from messages: float32, little-endian, consecutive."""

from array import array
from collections.abc import Iterable, Sequence

from specdec.errors import FieldInvalid
from specdec.protos.verifier.v1 import verifier_pb2 as pb
from specdec.sampling.logprobs import TokenLogprobs
from specdec.wire.tokens import tokens_from_bytes, tokens_to_bytes

_BYTES = 4


def logprobs_to_pb(logprobs: Sequence[TokenLogprobs]) -> pb.Logprobs | None:
    """Return the message of log probabilities, or None without any. All positions have equally many likely tokens."""
    if not logprobs:
        return None
    return pb.Logprobs(
        tokens=floats_to_bytes(each.logprob for each in logprobs),
        top_ids=tokens_to_bytes(token for each in logprobs for token, _ in each.top),
        top_logprobs=floats_to_bytes(logprob for each in logprobs for _, logprob in each.top),
        ranks=tokens_to_bytes(each.rank for each in logprobs) if any(each.rank for each in logprobs) else b"",
    )


def logprobs_from_pb(message: pb.Logprobs) -> tuple[TokenLogprobs, ...]:
    """Return the log probabilities of a message.

    Raises:
        FieldInvalid: the lengths of its arrays do not fit together.
    """
    own = floats_from_bytes(message.tokens, "logprobs")
    ids = tokens_from_bytes(message.top_ids)
    best = floats_from_bytes(message.top_logprobs, "logprobs")
    if len(ids) != len(best) or (len(ids) % len(own) if own else ids):
        raise FieldInvalid(f"{len(own)} logprobs with {len(ids)} ids and {len(best)} logprobs of theirs", "logprobs")
    ranks = tokens_from_bytes(message.ranks) or (0,) * len(own)
    if len(ranks) != len(own):
        raise FieldInvalid(f"{len(own)} logprobs with {len(ranks)} ranks", "logprobs")
    width = len(ids) // len(own) if own else 0
    pairs = tuple(zip(ids, best, strict=True))
    return tuple(
        TokenLogprobs(each, pairs[at * width : (at + 1) * width], rank)
        for at, (each, rank) in enumerate(zip(own, ranks, strict=True))
    )


def floats_to_bytes(values: Iterable[float]) -> bytes:
    return array("f", values).tobytes()


def floats_from_bytes(data: bytes, field: str) -> list[float]:
    """Return the float32 numbers in `data`. Raise FieldInvalid unless its length is a multiple of four."""
    if len(data) % _BYTES:
        raise FieldInvalid(f"{field} must be whole float32 values, got {len(data)} bytes", field)
    values = array("f")
    values.frombytes(data)
    return values.tolist()
