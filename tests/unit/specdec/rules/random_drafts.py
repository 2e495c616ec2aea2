"""Random distributions, and drafts drawn from such distributions."""

import torch
from torch import Tensor

from specdec.rules.draft import NO_DRAFT, Draft
from specdec.rules.proposal import propose
from specdec.rules.speculation import Mode

DRAFTING = [Mode.REJECTION, Mode.BLOCK, Mode.COUPLED]
VOCAB = 50


def distributions(rows: int, seed: int, vocab_size: int = VOCAB, dtype: torch.dtype = torch.float32) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (2 * torch.randn(rows, vocab_size, generator=generator)).to(dtype).softmax(-1)


def drafted(mode: Mode, gamma: int, seed: int, position: int = 10, support: int = 8, ids: int = VOCAB) -> Draft:
    """Return γ tokens drawn from γ unrelated distributions over the first ids."""
    if gamma == 0:
        return NO_DRAFT
    at = [position + step for step in range(gamma)]
    tokens, probs = propose(
        mode, distributions(gamma, 77 + seed, ids), [seed] * gamma, at, support, starts=[position] * gamma
    )
    return Draft(tuple(tokens), tuple(probs))
