"""What may be committed where a draft is not, or behind the last one: the tokens that are likely beside the draft."""

from collections.abc import Callable, Mapping, Sequence

from torch import Tensor

from drafter_service.sessions.draft_session import DraftSession
from specdec.rules.coupling import earliest
from specdec.rules.speculation import Mode
from specdec.sampling.distribution import History, probabilities

_MOST = 8
"""Most rivals of one draft."""


def rivals(
    logits: Tensor,
    sessions: Sequence[DraftSession],
    tokens: Sequence[int],
    history: Callable[[DraftSession], History],
) -> Mapping[int, Sequence[int]]:
    """The rivals of each row's draft, for the sessions that push chains, the likeliest first.

    A target whose distribution is near q draws one of q's likely tokens. In mode coupled it draws by the noise that the
    draft was drawn by, so there the rivals are those that come next in the race that the draft has won.
    """
    rows = [row for row, session in enumerate(sessions) if session.outcomes]
    if not rows:
        return {}
    asking = [sessions[row] for row in rows]
    q = probabilities(logits[rows], [each.params.ranking for each in asking], [history(each) for each in asking])
    mass, ids = q.topk(min(q.shape[1], max(each.outcomes for each in asking) + 1, _MOST + 1))
    likely = [
        [each for each, weight in zip(*row, strict=True) if weight]
        for row in zip(ids.tolist(), mass.tolist(), strict=True)
    ]
    coupled = [
        place for place, each in enumerate(asking) if each.mode is Mode.COUPLED and each.params.temperature > 0.0
    ]
    if coupled:
        seeds = [asking[place].params.seed for place in coupled]
        positions = [len(asking[place]) for place in coupled]
        races = earliest(mass[coupled].cpu(), ids[coupled].cpu(), seeds, positions, ids.shape[1])
        for place, race in zip(coupled, races, strict=True):
            likely[place] = race
    return {row: [each for each in some if each != tokens[row]] for row, some in zip(rows, likely, strict=True)}
