"""Hop 1 by passes: a gateway's orders on its stream to a verifier, and the verifier's result of each pass.

A message holds all generations of one gateway in columns, one entry per round. Neither side needs a message, a
coroutine or a translation per session.
"""

from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, chain, pairwise
from typing import TypeVar

from specdec.errors import FieldInvalid, SpecdecError
from specdec.protos.verifier.v1 import verifier_pb2 as pb
from specdec.rules.speculation import Origin
from specdec.wire.beams import BEAM_REPORT
from specdec.wire.generation import DETAIL, SPEEDUP, GenerationCall, Round, Speedup, Timing, call_from_pb, call_to_pb
from specdec.wire.logprobs import floats_from_bytes, floats_to_bytes, logprobs_from_pb, logprobs_to_pb
from specdec.wire.params import FINISH, ORIGIN
from specdec.wire.tokens import tokens_from_bytes, tokens_to_bytes

_Item = TypeVar("_Item")

_FIXED = Speedup()
"""Unknown speed-up, for a round with a fixed draft length."""
_ORIGINS: Sequence[Origin] = [ORIGIN.from_pb(number) for number in range(256)]
"""Origin of each number in a message."""


@dataclass(frozen=True, slots=True)
class Opening:
    """A generation to start."""

    slot: int
    """Slot number of the generation on its stream."""
    call: GenerationCall
    credit: int
    """Credit: sequence length, prompt included, that it may reach before it needs more credit."""
    timeout: float | None = None
    """Timeout of the generation, in seconds; None for none."""
    metadata: Mapping[str, str] = field(default_factory=dict)
    """Request id and trace headers of the caller."""


@dataclass(frozen=True, slots=True)
class Orders:
    """A gateway's orders for its generations, applied in the order of the fields."""

    opens: Sequence[Opening] = ()
    cancels: Sequence[int] = ()
    """Slots of the generations to end."""
    credits: Mapping[int, int] = field(default_factory=dict)
    """New credit, by slot."""
    unreadable: Mapping[int, SpecdecError] = field(default_factory=dict)
    """Unreadable openings, by slot; they are refused with this error."""


@dataclass(frozen=True, slots=True)
class Pass:
    """Results of a pass for the generations of one stream. An empty pass is a heartbeat."""

    rounds: Sequence[tuple[int, Round]] = ()
    """Slot and round of each generation in the pass."""
    ended: Mapping[int, bytes] = field(default_factory=dict)
    """Failed or refused generations: a serialized google.rpc.Status by slot."""


def orders_to_pb(orders: Orders) -> pb.ServeRequest:
    return pb.ServeRequest(
        opens=map(_open_to_pb, orders.opens),
        cancels=tokens_to_bytes(orders.cancels),
        credit_slots=tokens_to_bytes(orders.credits),
        credits=tokens_to_bytes(orders.credits.values()),
    )


def orders_from_pb(message: pb.ServeRequest) -> Orders:
    """Return the orders of a message.

    Raises:
        FieldInvalid: the columns do not fit together. A single opening that cannot be read is in `unreadable`.
    """
    opens: list[Opening] = []
    unreadable: dict[int, SpecdecError] = {}
    for each in message.opens:
        timeout = each.timeout if each.HasField("timeout") else None
        try:
            opens.append(Opening(each.slot, call_from_pb(each.call), each.credit, timeout, dict(each.metadata)))
        except SpecdecError as error:
            unreadable[each.slot] = error
    slots, credits = tokens_from_bytes(message.credit_slots), tokens_from_bytes(message.credits)
    if len(slots) != len(credits):
        raise FieldInvalid(f"{len(slots)} slots with {len(credits)} credits", "credits")
    return Orders(opens, tokens_from_bytes(message.cancels), dict(zip(slots, credits, strict=True)), unreadable)


def pass_to_pb(done: Pass) -> pb.ServeResponse:
    """Return the message of a pass. A round has at most 65,535 tokens; all speed-ups in a pass are equal."""
    rounds, names = [each for _, each in done.rounds], {"": 0}
    drafters = bytes(names.setdefault(each.drafter, len(names)) for each in rounds)
    fallbacks = bytes(names.setdefault(each.fallback, len(names)) for each in rounds)
    adaptive = next((each.speedup for each in rounds if each.speedup != _FIXED), None)
    return pb.ServeResponse(
        slots=tokens_to_bytes(slot for slot, _ in done.rounds),
        base_lens=tokens_to_bytes(each.base_len for each in rounds),
        counts=_shorts_to_bytes(len(each.tokens) for each in rounds),
        tokens=tokens_to_bytes(chain.from_iterable(each.tokens for each in rounds)),
        origins=bytes(map(ORIGIN.to_pb, chain.from_iterable(each.origins for each in rounds))),
        drafted=_shorts_to_bytes(len(each.draft) for each in rounds),
        draft_tokens=tokens_to_bytes(chain.from_iterable(each.draft for each in rounds)),
        accepted=_shorts_to_bytes(each.accepted for each in rounds),
        forced=_shorts_to_bytes(each.forced for each in rounds),
        finishes=bytes(FINISH.to_pb(each.finish) for each in rounds),
        names=names,
        drafters=drafters,
        fallbacks=fallbacks,
        draft_seconds=floats_to_bytes(each.timing.draft for each in rounds),
        queue_seconds=floats_to_bytes(each.timing.queue for each in rounds),
        verify_seconds=floats_to_bytes(each.timing.verify for each in rounds),
        adaptive=bytes(each.speedup != _FIXED for each in rounds),
        speedup=SPEEDUP.to_pb(adaptive) if adaptive else None,
        extras=[extra for row, each in enumerate(rounds) if (extra := _extra(row, each))],
        ended=[pb.Ended(slot=slot, status=status) for slot, status in done.ended.items()],
    )


def pass_from_pb(message: pb.ServeResponse) -> Pass:
    """Return the pass of a message.

    Raises:
        ValueError, IndexError, FieldInvalid: the columns do not fit together; no sound verifier sends this.
    """
    counts, drafted = _shorts_from_bytes(message.counts), _shorts_from_bytes(message.drafted)
    tokens, drafts = tokens_from_bytes(message.tokens), tokens_from_bytes(message.draft_tokens)
    origins = [_ORIGINS[number] for number in message.origins]
    if sum(counts) != len(tokens) or len(origins) != len(tokens) or sum(drafted) != len(drafts):
        raise ValueError("the tokens of a pass do not fit its counts")
    names, speedup = list(message.names), SPEEDUP.from_pb(message.speedup)
    columns = zip(  # in the order of the fields of Round
        tokens_from_bytes(message.base_lens),
        _pieces(tokens, counts),
        _pieces(origins, counts),
        _pieces(drafts, drafted),
        _shorts_from_bytes(message.accepted),
        (names[index] for index in message.drafters),
        _shorts_from_bytes(message.forced),
        map(FINISH.from_pb, message.finishes),
        (names[index] for index in message.fallbacks),
        map(
            Timing,
            floats_from_bytes(message.draft_seconds, "draft_seconds"),
            floats_from_bytes(message.queue_seconds, "queue_seconds"),
            floats_from_bytes(message.verify_seconds, "verify_seconds"),
        ),
        (speedup if each else _FIXED for each in message.adaptive),
        strict=True,
    )
    rounds = [Round(*each) for each in columns]
    for extra in message.extras:
        rounds[extra.row] = _with_extra(rounds[extra.row], extra)
    ended = {each.slot: each.status for each in message.ended}
    return Pass(list(zip(tokens_from_bytes(message.slots), rounds, strict=True)), ended)


def _open_to_pb(opening: Opening) -> pb.Open:
    return pb.Open(
        slot=opening.slot,
        call=call_to_pb(opening.call),
        credit=opening.credit,
        timeout=opening.timeout,
        metadata=opening.metadata,
    )


def _extra(row: int, verified: Round) -> pb.RoundExtra | None:
    """Return the rare fields of a round that have no column; None for most rounds."""
    rare = verified.logprobs, verified.detail, verified.cached_tokens, verified.prompt_logprobs, verified.beams
    if not any(rare):
        return None
    return pb.RoundExtra(
        row=row,
        logprobs=logprobs_to_pb(verified.logprobs),
        detail=DETAIL.to_pb(verified.detail),
        cached_tokens=verified.cached_tokens,
        prompt_logprobs=logprobs_to_pb(verified.prompt_logprobs),
        beams=BEAM_REPORT.to_pb(verified.beams),
    )


def _with_extra(verified: Round, extra: pb.RoundExtra) -> Round:
    return verified._replace(
        logprobs=logprobs_from_pb(extra.logprobs),
        detail=DETAIL.from_pb(extra.detail),
        cached_tokens=extra.cached_tokens,
        prompt_logprobs=logprobs_from_pb(extra.prompt_logprobs),
        beams=BEAM_REPORT.from_pb(extra.beams),
    )


def _pieces(items: Sequence[_Item], lengths: Sequence[int]) -> Iterator[tuple[_Item, ...]]:
    """Yield consecutive pieces of these lengths."""
    return (tuple(items[start:end]) for start, end in pairwise(accumulate(lengths, initial=0)))


def _shorts_to_bytes(values: Iterable[int]) -> bytes:
    return array("H", values).tobytes()


def _shorts_from_bytes(data: bytes) -> list[int]:
    values = array("H")
    values.frombytes(data)
    return values.tolist()
