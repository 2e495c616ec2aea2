"""Messages of a hostile drafter, with a false value in each field of each message in turn.

Each lie is a script of `ScriptedDrafter`, so that it is sent over real gRPC with a correct checksum.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf, nan
from struct import pack

from specdec.protos.drafter.v1 import drafter_pb2 as pb
from specdec.rules.draft import MAX_WEIGHT
from specdec.rules.prefix import PrefixHash
from specdec.wire.tokens import tokens_to_bytes
from tests.conformance.small_pair import VOCAB_SIZE
from tests.integration.verifier.scripted_drafter import Script, Seen, drafts

Change = Callable[[pb.DraftTokens], object]
EVERY_ID = tuple(range(VOCAB_SIZE))
LIKELY = 4
"""The id that hostile drafters draft. The target of small_pair gives it a positive probability after every prefix."""


@dataclass(frozen=True)
class Claim:
    """A draft of one constant token, and the q̂ that the drafter claims for it."""

    token: int
    weights: tuple[int, ...]
    """Weight of every id."""

    def script(self, seen: Seen, gamma: int) -> Sequence[pb.DraftResponse]:
        """Return the whole chain of γ such drafts."""
        frame = drafts(seen, [self.token] * gamma)
        frame.drafts[0].support_sizes[:] = [VOCAB_SIZE] * gamma
        frame.drafts[0].support_ids = tokens_to_bytes(EVERY_ID * gamma)
        frame.drafts[0].support_weights = weights(*self.weights * gamma)
        return [frame]

    def q(self) -> tuple[float, ...]:
        """Return the probability of each id under q̂."""
        return tuple(weight / sum(self.weights) for weight in self.weights)


def weights(*values: int) -> bytes:
    """Return weights in their wire format."""
    return pack(f"<{len(values)}H", *values)


def changed(change: Change, tokens: Sequence[int] = (LIKELY,)) -> Script:
    """Return a script that sends a chain of at most γ point masses, after a change of its message."""

    def script(seen: Seen, gamma: int) -> Sequence[pb.DraftResponse]:
        frame = drafts(seen, (list(tokens) * gamma)[: max(gamma, len(tokens))])
        change(frame.drafts[0])
        return [frame]

    return script


def field(**values: object) -> Script:
    """Return a script that replaces fields of a chain's message."""

    def change(message: pb.DraftTokens) -> None:
        for name, value in values.items():
            if name in ("support_sizes", "parents"):
                getattr(message, name)[:] = value
            else:
                setattr(message, name, value)

    return changed(change)


def parents(make: Callable[[int], Iterable[int]]) -> Script:
    """Return a script that sends a tree with these parents, made from the number of its tokens."""

    def change(message: pb.DraftTokens) -> None:
        count = len(message.support_sizes)
        message.parents[:] = make(count)
        message.support_sizes.append(0)

    return changed(change)


def support(ids: Sequence[int], *chosen: int) -> Script:
    """Return a script in which every q̂ has these ids with these weights."""

    def change(message: pb.DraftTokens) -> None:
        count = len(message.support_sizes)
        message.support_sizes[:] = [len(ids)] * count
        message.support_ids = tokens_to_bytes(list(ids) * count)
        message.support_weights = weights(*chosen * count)

    return changed(change)


def beside(*frames: pb.DraftResponse) -> Script:
    """Return a script that sends these frames, by default for the current session, and then a chain."""

    def script(seen: Seen, gamma: int) -> Sequence[pb.DraftResponse]:
        return [*(_of(frame, seen) for frame in frames), drafts(seen, [LIKELY] * gamma)]

    return script


def _of(frame: pb.DraftResponse, seen: Seen) -> pb.DraftResponse:
    copy = pb.DraftResponse()
    copy.CopyFrom(frame)
    for end in copy.ends:
        end.session_id, end.epoch = seen.session_id, seen.epoch
    for nack in copy.nacks:
        nack.session_id, nack.epoch = seen.session_id, seen.epoch
    return copy


def for_the_other_sessions(seen: Seen, gamma: int) -> Sequence[pb.DraftResponse]:
    """Send chains under the names of other sessions, some of which exist here and some nowhere."""
    number = int(seen.session_id.removeprefix("s"))
    names = [f"s{number ^ 1}", f"s{number + 1000}", "", "x" * 100_000]
    return [drafts(Seen(name, seen.epoch, seen.tokens, seen.prompt_len), [LIKELY] * gamma) for name in names]


def on_another_prefix(seen: Seen, gamma: int) -> Sequence[pb.DraftResponse]:
    """Send a chain whose hash is correct for a prefix that was never committed."""
    tokens = [*seen.tokens[:-1], (seen.tokens[-1] + 1) % VOCAB_SIZE]
    frame = drafts(seen, [LIKELY] * gamma)
    frame.drafts[0].prefix_hash = PrefixHash(tokens).value
    return [frame]


def rewritten(seen: Seen, gamma: int) -> Sequence[pb.DraftResponse]:
    """Send chains that begin inside the committed tokens and contain other tokens there."""
    base = max(1, len(seen.tokens) - 2)
    return [drafts(seen, [(token + 1) % VOCAB_SIZE for token in seen.tokens[base:]] + [LIKELY] * gamma, base_len=base)]


def ahead(lie: Script) -> Script:
    """Return a script that tells the lie about a longer prefix, as a chain pushed for an outcome of the verdict."""

    def script(seen: Seen, gamma: int) -> Sequence[pb.DraftResponse]:
        return lie(replace(seen, tokens=[*seen.tokens, LIKELY]), max(gamma, 1))

    return script


def uniform(count: int) -> Script:
    """Return a script in which every q̂ is uniform over the first `count` ids."""

    def change(message: pb.DraftTokens) -> None:
        message.uniform_ids = count
        message.support_sizes[:] = [0] * len(message.support_sizes)
        message.support_ids, message.support_weights = b"", b""

    return changed(change)


def _load(seconds: float) -> Script:
    return beside(pb.DraftResponse(load=pb.Load(sessions=2**32 - 1, step_seconds=seconds)))


def _nack(reason: int) -> Script:
    return beside(pb.DraftResponse(nacks=[pb.Nack(reason=reason, detail="y" * 10_000)]))  # type: ignore[arg-type]


HONEST = beside()
"""An honest script: it always drafts the same token and says so."""
RARE = Claim(LIKELY, tuple(1 if token == LIKELY else MAX_WEIGHT for token in EVERY_ID))
"""A claim that the draft was very unlikely under q̂, so that nearly every p accepts it."""
EVEN = Claim(LIKELY, (1,) * VOCAB_SIZE)
"""A claim that the draft was drawn uniformly from all ids."""

LIES: Mapping[str, Script] = {
    "q̂: the draft was unlikely": RARE.script,
    "q̂: the draft was one of all": EVEN.script,
    "q̂: all of it on other ids": support([1, 2, 3], 1, 1, 1),
    "q̂: none": field(support_sizes=[], support_ids=b"", support_weights=b""),
    "q̂: empty": support([]),
    "q̂: 0 / 0": support(EVERY_ID, *[0] * VOCAB_SIZE),
    "q̂: one weight is 0": support([1, LIKELY], 1, 0),
    "q̂: an id twice": support([LIKELY, LIKELY], 1, 1),
    "q̂: ids descend": support([LIKELY, 1], 1, 1),
    "q̂: negative ids": support([-(2**31), LIKELY], 1, 1),
    "q̂: ids beyond the vocabulary": support([LIKELY, 2**31 - 1], 1, 1),
    "q̂: more ids than there are": support([*EVERY_ID, VOCAB_SIZE], *[1] * (VOCAB_SIZE + 1)),
    "counts: four thousand million ids": field(support_sizes=[2**32 - 1]),
    "counts: too many distributions": field(support_sizes=[1] * 100_000),
    "counts: too few weights": field(support_weights=b"\1"),
    "tokens: not whole": field(tokens=b"\1\2\3"),
    "tokens: none": field(tokens=b"", support_sizes=[], support_ids=b"", support_weights=b""),
    "tokens: beyond the vocabulary": changed(lambda _: None, [VOCAB_SIZE]),
    "tokens: negative": changed(lambda _: None, [-1]),
    "tokens: the largest": changed(lambda _: None, [2**31 - 1]),
    "tokens: a chain of 20,000": changed(lambda _: None, [LIKELY] * 20_000),
    "parents: of one token": field(parents=[-1]),
    "parents: of more tokens": field(parents=[-1] * 1000),
    "parents: themselves": parents(range),
    "parents: later tokens": parents(lambda count: range(1, count + 1)),
    "parents: below the root": parents(lambda count: [-2] * count),
    "parents: the largest": parents(lambda count: [2**31 - 1] * count),
    "parents: all children of the root": parents(lambda count: [-1] * count),
    "entropies: not whole": field(entropies=b"\1"),
    "entropies: unasked": field(entropies=pack("<f", nan)),
    "gammas: not whole": field(gammas=b"\1"),
    "gammas: unasked": field(gammas=b"\xff\xff"),
    "uniform: over more ids than there are": uniform(2**20),
    "uniform: over one id too many": uniform(VOCAB_SIZE + 1),
    "uniform: over other ids": uniform(LIKELY),
    "uniform: without end": field(uniform_ids=2**32 - 1, support_sizes=[0], support_ids=b"", support_weights=b""),
    "prefix: length 0": field(base_len=0),
    "prefix: the largest length": field(base_len=2**32 - 1),
    "prefix: another hash": field(prefix_hash=2**64 - 1),
    "prefix: of another text": on_another_prefix,
    "prefix: other committed tokens": rewritten,
    "epoch: 0": field(epoch=0),
    "epoch: the largest": field(epoch=2**64 - 1),
    "sessions of others": for_the_other_sessions,
    "end: behind everything": beside(pb.DraftResponse(ends=[pb.DraftEnd(base_len=2**32 - 1)])),
    "nack: of no kind": _nack(0),
    "nack: of an unknown kind": _nack(99),
    "nack: forgotten": _nack(pb.Nack.REASON_UNKNOWN),
    "nack: overloaded": _nack(pb.Nack.REASON_OVERLOADED),
    "load: not a number": _load(nan),
    "load: without end": _load(inf),
    "load: negative": _load(-inf),
    "pong: never asked for": beside(pb.DraftResponse(pong=pb.Pong(nonce=2**64 - 1))),
    "hello: again, of another tokenizer": beside(pb.DraftResponse(hello_ack=pb.HelloAck(tokenizer_hash="x"))),
}
"""Scripts, keyed by what is false in them."""

OUT_OF_RANGE = "a draft token is outside the vocabulary"
REFUSED: Mapping[str, str] = {
    "q̂: all of it on other ids": "a draft token is not in its own distribution",
    "q̂: none": "needs its distribution",
    "q̂: empty": "a draft distribution needs as many integer weights as ids",
    "q̂: 0 / 0": "a draft distribution has a weight outside",
    "q̂: one weight is 0": "a draft distribution has a weight outside",
    "q̂: an id twice": "the ids of a draft distribution are not ascending",
    "q̂: ids descend": "the ids of a draft distribution are not ascending",
    "q̂: negative ids": "a draft distribution has an id outside the vocabulary",
    "q̂: ids beyond the vocabulary": "a draft distribution has an id outside the vocabulary",
    "q̂: more ids than there are": "a draft distribution has more ids than the vocabulary",
    "uniform: over more ids than there are": "a draft distribution has more ids than the vocabulary",
    "uniform: over one id too many": "a draft distribution has more ids than the vocabulary",
    "uniform: over other ids": "a draft token is not in its own distribution",
    "tokens: beyond the vocabulary": OUT_OF_RANGE,
    "tokens: the largest": OUT_OF_RANGE,
    "tokens: a chain of 20,000": "a message has at most 128 drafts",
    "parents: all children of the root": "the session asked for chains, and got a tree",
}
"""Lies that only the check of a received draft refuses, and the reason that it gives."""
