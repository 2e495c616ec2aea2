"""What a scripted drafter answers: the right drafts, wrong ones, and messages that make no sense."""

from collections.abc import Sequence

from protos.drafter.v1 import drafter_pb2 as pb
from tests.integration.verifier.scripted_drafter import Script, Seen, drafts
from tests.integration.verifier.target import LENGTH, Target


def oracle(target: Target) -> Script:
    """Drafts exactly what the target will say."""

    def script(seen: Seen, gamma: int) -> Sequence[pb.DraftResponse]:
        text = target.greedy(seen.tokens[: seen.prompt_len], LENGTH)
        done = len(seen.tokens) - seen.prompt_len
        return [drafts(seen, text[done : done + gamma])] if text[done : done + gamma] else []

    return script


def wrong(seen: Seen, gamma: int) -> Sequence[pb.DraftResponse]:
    """Drafts what the target never says."""
    return [drafts(seen, [7] * gamma)]


def corrupt_hash(seen: Seen, gamma: int) -> Sequence[pb.DraftResponse]:
    """Sends drafts whose prefix hash is wrong."""
    return [drafts(seen, [7] * gamma, flip=1)]


def stale(seen: Seen, gamma: int) -> Sequence[pb.DraftResponse]:
    """Sends drafts of a prefix that is one token too short."""
    return [drafts(seen, [7] * gamma, base_len=len(seen.tokens) - 1)]


def beyond(seen: Seen, gamma: int) -> Sequence[pb.DraftResponse]:
    """Sends drafts of a prefix that is longer than what was committed."""
    seen = Seen(seen.session_id, seen.epoch, [*seen.tokens, 7, 7], seen.prompt_len)
    return [drafts(seen, [7] * gamma)]


def malformed(seen: Seen, gamma: int) -> Sequence[pb.DraftResponse]:
    """Sends a q̂ with too few weights."""
    message = drafts(seen, [7] * gamma)
    message.drafts[0].support_weights = b"\1"
    return [message]


def outside_vocabulary(seen: Seen, gamma: int) -> Sequence[pb.DraftResponse]:
    """Drafts an id that no tokenizer has."""
    return [drafts(seen, [2**30] * gamma)]


def silent(seen: Seen, gamma: int) -> Sequence[pb.DraftResponse]:
    """Drafts nothing."""
    return []
