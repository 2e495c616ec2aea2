"""Answers of a scripted drafter: right drafts, wrong drafts, and invalid messages."""

from collections.abc import Sequence

from specdec.protos.drafter.v1 import drafter_pb2 as pb
from tests.integration.verifier.scripted_drafter import Script, Seen, drafts
from tests.integration.verifier.target import LENGTH, Target


def oracle(target: Target) -> Script:
    """Draft exactly the target's continuation."""

    def script(seen: Seen, gamma: int) -> Sequence[pb.DraftResponse]:
        text = target.greedy(seen.tokens[: seen.prompt_len], LENGTH)
        done = len(seen.tokens) - seen.prompt_len
        return [drafts(seen, text[done : done + gamma])] if text[done : done + gamma] else []

    return script


def wrong(seen: Seen, gamma: int) -> Sequence[pb.DraftResponse]:
    """Draft tokens that the target never generates."""
    return [drafts(seen, [7] * gamma)]


def corrupt_hash(seen: Seen, gamma: int) -> Sequence[pb.DraftResponse]:
    """Send drafts with a wrong prefix hash."""
    return [drafts(seen, [7] * gamma, flip=1)]


def stale(seen: Seen, gamma: int) -> Sequence[pb.DraftResponse]:
    """Send drafts of a prefix that is one token too short."""
    return [drafts(seen, [7] * gamma, base_len=len(seen.tokens) - 1)]


def beyond(seen: Seen, gamma: int) -> Sequence[pb.DraftResponse]:
    """Send drafts of a prefix that is longer than the committed tokens."""
    seen = Seen(seen.session_id, seen.epoch, [*seen.tokens, 7, 7], seen.prompt_len)
    return [drafts(seen, [7] * gamma)]


def malformed(seen: Seen, gamma: int) -> Sequence[pb.DraftResponse]:
    """Send a q̂ with too few weights."""
    message = drafts(seen, [7] * gamma)
    message.drafts[0].support_weights = b"\1"
    return [message]


def outside_vocabulary(seen: Seen, gamma: int) -> Sequence[pb.DraftResponse]:
    """Draft an id that no tokenizer has."""
    return [drafts(seen, [2**30] * gamma)]


def silent(seen: Seen, gamma: int) -> Sequence[pb.DraftResponse]:
    """Draft nothing."""
    return []
