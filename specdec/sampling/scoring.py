"""Log probabilities of committed tokens under the raw logits of the target.

No parameter of the request changes them: they are taken before bias, masks, penalties, temperature and filters, like
vLLM's default (`logprobs_mode=raw_logprobs`). So the log probability of a token does not depend on the temperature, on
the mode, or on its origin: the target, not the drafter, scores an accepted token at its own position.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from specdec.errors import InternalError, NoDistribution
from specdec.sampling.logprobs import TokenLogprobs
from specdec.sampling.transfer import to_device, to_host

LEAST = -9999.0
"""Stands for the logarithm of 0, which neither JSON nor OpenAI's clients can express."""


def score(logits: Tensor, tokens: Sequence[int], top: int, *, ranked: bool = False) -> list[TokenLogprobs]:
    """The log probability of each row's token and of its `top` most likely ids, from logits [N, V].

    Args:
        ranked: whether to report each token's rank among all ids: the number of likelier ids plus one.

    Raises:
        NoDistribution: a row is NaN or infinite.
        InternalError: the number of tokens differs from the number of rows.
    """
    if len(logits) != len(tokens):
        raise InternalError(f"{len(logits)} rows of logits for {len(tokens)} tokens")
    scores = logits.float()
    mass = scores.logsumexp(-1, keepdim=True)
    (chosen,) = to_device(logits.device, torch.tensor(tokens, dtype=torch.int64)[:, None])
    best, ids = _likeliest(scores, min(top, scores.shape[-1]))
    own = scores.gather(-1, chosen)
    places = (scores > own).sum(-1) + 1 if ranked else chosen[:, 0] * 0
    # The logarithm of the mass is copied too: if it is not finite, no result of the row is finite.
    found = torch.cat([own - mass, best - mass], dim=1).clamp_min_(LEAST)
    mass, found, ids, places = to_host(mass.double(), found.double(), ids, places)
    if not bool(mass.isfinite().all()):
        raise NoDistribution("logits are NaN or infinite")
    return [
        TokenLogprobs(logprob, tuple(zip(row, likely, strict=True)), rank)
        for row, (logprob, *likely), rank in zip(ids.tolist(), found.tolist(), places.tolist(), strict=True)
    ]


def _likeliest(scores: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The best scores and their ids, both [N, count], best first; of equal scores the lower id comes first."""
    best, ids = scores.topk(count)
    ids, order = ids.sort(-1)
    best, order = best.gather(-1, order).sort(dim=-1, descending=True, stable=True)
    return best, ids.gather(-1, order)
