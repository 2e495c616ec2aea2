"""From a verdict to a round: where the generation ends inside a verdict, the rest of it is cut off."""

from collections.abc import Container

from specdec.rules.draft import Verdict
from specdec.rules.params import FinishReason
from specdec.wire.generation import Round


def cut(verdict: Verdict, base_len: int, limit: int, stop_ids: Container[int]) -> Round:
    """The round that commits a verdict, up to the earliest of a stop id, which is kept itself, and the limit.

    Args:
        verdict: of the draft behind the committed tokens.
        base_len: committed tokens before this round.
        limit: sequence length at which the generation ends, more than `base_len`.
        stop_ids: ids that end the generation.

    Returns:
        A round whose counts are of the tokens that were kept; its draft, its fallback and its timing are not set.
    """
    room = limit - base_len
    tokens = verdict.tokens[:room]
    finish = FinishReason.LENGTH if len(verdict.tokens) >= room else None
    stop = next((index for index, token in enumerate(tokens) if token in stop_ids), None)
    if stop is not None:
        tokens = tokens[: stop + 1]
        finish = FinishReason.STOP
    count = len(tokens)
    return Round(
        base_len=base_len,
        tokens=tokens,
        origins=verdict.origins[:count],
        accepted=min(verdict.accepted, count),
        finish=finish,
        logprobs=verdict.logprobs[:count],
    )
