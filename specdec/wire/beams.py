"""Beam search between the services: options, reports, and the proposals of a drafter."""

from collections.abc import Sequence
from dataclasses import dataclass

from specdec.beams.options import MAX_WIDTH, BeamOptions, BeamReport, EarlyStopping
from specdec.errors import FieldInvalid
from specdec.protos.common.v1 import common_pb2 as common
from specdec.protos.drafter.v1 import drafter_pb2 as pb
from specdec.wire.codec import Codec, EnumCodec, optional
from specdec.wire.tokens import tokens_from_bytes, tokens_to_bytes

MOST_NODES = 63
"""Most proposed beams of one pass, so that they and the token before them form a tree."""
_STOPPING = EnumCodec[EarlyStopping](EarlyStopping, common.EarlyStopping.DESCRIPTOR, unknown=EarlyStopping.ESTIMATE)
_OPTIONS = Codec(BeamOptions, common.BeamOptions, early_stopping=_STOPPING)
BEAM_OPTIONS = optional(_OPTIONS)
"""None is sent as an unset field."""
beam_options_from_pb = _OPTIONS.from_pb
BEAM_REPORT = optional(Codec(BeamReport, common.BeamReport))


@dataclass(frozen=True, slots=True)
class BeamAsk:
    """Running beams of a search, for which a drafter proposes the next steps."""

    tokenizer_hash: str
    prompt: tuple[int, ...]
    beams: tuple[tuple[tuple[int, ...], float], ...]
    """Tokens of each beam after the prompt, and its log probability."""
    width: int
    """Number of beams to propose for each step."""
    steps: int
    end_token_ids: tuple[int, ...] = ()
    cache_salt: str = ""


@dataclass(frozen=True, slots=True)
class ProposedBeam:
    """A beam that extends a running beam or another proposed one by a token."""

    parent: int
    """Index of a running beam, or the number of running beams plus the index of an earlier proposed beam."""
    token: int


def ask_to_pb(ask: BeamAsk) -> pb.DraftBeamsRequest:
    return pb.DraftBeamsRequest(
        tokenizer_hash=ask.tokenizer_hash,
        prompt=tokens_to_bytes(ask.prompt),
        beams=[pb.RunningBeam(tokens=tokens_to_bytes(tokens), score=score) for tokens, score in ask.beams],
        width=ask.width,
        steps=ask.steps,
        end_token_ids=ask.end_token_ids,
        cache_salt=ask.cache_salt,
    )


def ask_from_pb(message: pb.DraftBeamsRequest) -> BeamAsk:
    """Return the value of a message.

    Raises:
        FieldInvalid: a field is out of range; the error names it.
    """
    beams = tuple((tuple(tokens_from_bytes(beam.tokens)), beam.score) for beam in message.beams)
    if not 1 <= len(beams) <= MAX_WIDTH:
        raise FieldInvalid(f"there must be 1 to {MAX_WIDTH} beams, got {len(beams)}", "beams")
    if not 1 <= message.width * message.steps <= MOST_NODES:
        raise FieldInvalid(f"width * steps must be in 1..{MOST_NODES}, got {message.width * message.steps}", "width")
    prompt = tuple(tokens_from_bytes(message.prompt))
    if not prompt:
        raise FieldInvalid("prompt must not be empty", "prompt")
    return BeamAsk(
        message.tokenizer_hash,
        prompt,
        beams,
        message.width,
        message.steps,
        tuple(message.end_token_ids),
        message.cache_salt,
    )


def proposal_to_pb(nodes: Sequence[ProposedBeam]) -> pb.DraftBeamsResponse:
    return pb.DraftBeamsResponse(
        tokens=tokens_to_bytes(node.token for node in nodes), parents=tokens_to_bytes(node.parent for node in nodes)
    )


def proposal_from_pb(message: pb.DraftBeamsResponse, beams: int, vocab_size: int) -> tuple[ProposedBeam, ...]:
    """Return the proposed beams of a message.

    Args:
        beams: number of running beams.
        vocab_size: ids are below it.

    Raises:
        FieldInvalid: an id or a parent is out of range, or there are too many.
    """
    tokens, parents = tokens_from_bytes(message.tokens), tokens_from_bytes(message.parents)
    if len(tokens) != len(parents) or len(tokens) > MOST_NODES:
        raise FieldInvalid(f"{len(tokens)} tokens and {len(parents)} parents are no proposal", "tokens")
    if len(set(zip(tokens, parents, strict=True))) != len(tokens):
        raise FieldInvalid("a beam is proposed twice", "tokens")
    for index, (token, parent) in enumerate(zip(tokens, parents, strict=True)):
        if token >= vocab_size or parent >= beams + index:
            raise FieldInvalid(f"proposed beam {index} has token {token} and parent {parent}", "parents")
    return tuple(map(ProposedBeam, parents, tokens))
