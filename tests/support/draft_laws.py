"""The q̂ sent with a draft, for tests in which the drafts do not matter."""

from torch import Tensor

from specdec.rules.draft import SparseProbs
from specdec.rules.proposal import propose
from specdec.rules.speculation import Mode


def compress(q: Tensor, k: int) -> list[SparseProbs]:
    """Return the q̂ of each row of q [N, V], with at most k ids.

    Raises:
        InternalError: q is not a batch of distributions.
    """
    anywhere = [0] * len(q)
    return propose(Mode.REJECTION, q, anywhere, anywhere, k)[1]
