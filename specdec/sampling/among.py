"""Sampling parameters and history of a small vocabulary, made of a few ids of a larger one."""

from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor

from specdec.errors import NoDistribution
from specdec.sampling.distribution import History
from specdec.sampling.params import SamplingParams


def among(ids: Tensor, params: SamplingParams, history: History) -> tuple[SamplingParams, History]:
    """Map parameters and history to the vocabulary in which token i is ids[i]. Other tokens are left out.

    Args:
        ids: ascending.
    """
    places = {token: place for place, token in enumerate(ids.tolist())}

    def found(tokens: Sequence[int]) -> tuple[int, ...]:
        return tuple(places[token] for token in tokens if token in places)

    allowed = found(params.allowed_token_ids)
    if params.allowed_token_ids and not allowed:
        raise NoDistribution("none of the candidates may be drawn")
    masked = params.end_token_ids if len(history.output) < params.min_tokens else ()
    bias = {places[token]: each for token, each in params.logit_bias.items() if token in places}
    mapped = replace(
        params,
        logit_bias=bias,
        min_tokens=0,
        end_token_ids=(),
        allowed_token_ids=allowed,
        banned_token_ids=found((*params.banned_token_ids, *masked, *params.barred(history.output))),
        bad_words=(),
    )
    return mapped, History(found(history.prompt), found(history.output))
