"""Checks of single decisions that no law shows: ties, zeros, the cut of a round, and text that spans rounds."""

from collections.abc import Sequence
from contextlib import suppress
from itertools import product
from unittest.mock import patch

import torch
from torch import Tensor

from specdec.errors import NoDistribution
from specdec.rules import acceptance, rng, verification
from specdec.rules.draft import NO_DRAFT, Draft, SparseProbs, Verdict
from specdec.rules.speculation import Mode, Origin
from specdec.sampling import distribution as sampling
from specdec.sampling.distribution import History
from specdec.sampling.params import FinishReason, SamplingParams
from specdec.wire.generation import Fallback, Round, Speedup, Timing
from tests.conformance.checks.check import Check, count
from tests.support.gateway_fakes import ByteTokenizer
from verifier_service.backends.batch_plan import Outcome
from verifier_service.drafts.drafts import Proposal
from verifier_service.passes import conclude

END = 0
BASE_LEN = 7
"""Committed tokens before the cuts."""
TEXT = "aéa €nd n"
STOP = "nd"


def impossible_tokens() -> float:
    """Count tokens of probability 0 that are committed when every uniform is 0."""
    p = torch.tensor([[0.0, 0.5, 0.0, 0.5]], dtype=torch.float64).repeat(3, 1)
    q = SparseProbs(torch.arange(4), torch.tensor([9, 1, 1, 1]))
    bad = 0

    def zeros(seeds: Sequence[int], *_: object, **__: object) -> Tensor:
        return torch.zeros(len(seeds), dtype=torch.float64)

    with patch.object(verification, "uniform", zeros), patch.object(rng, "uniform", zeros):
        for mode, tokens in product((Mode.REJECTION, Mode.BLOCK), product(range(4), repeat=2)):
            (verdict,) = verification.verify(mode, p, [Draft(tokens, (q, q))], [0], [0])
            bad += sum(token in (0, 2) for token in verdict.tokens)
    return bad


def empty_residuals() -> float:
    """Count residuals of p against itself from which nothing can be drawn."""
    p = torch.tensor([[0.25, 0.75], [1.0, 0.0]], dtype=torch.float64)
    left = acceptance.residual(p, torch.ones(2, dtype=torch.float64), torch.tensor([[0, 1]] * 2), p.clone())
    return sum(not bool(row.isfinite().all() and row.sum() > 0) for row in left)


def broken_ties() -> float:
    """Count greedy rows that do not choose the lowest id of several equal ones."""
    logits = torch.tensor([[1.0, 3.0, 3.0, 3.0], [2.0, 2.0, 0.0, 2.0], [0.0, 0.0, 0.0, 5.0]])
    p = sampling.probabilities(logits, [SamplingParams(temperature=0.0)] * 3, [History()] * 3)
    return sum(int(row.argmax()) != expected for row, expected in zip(p, (1, 0, 3), strict=True))


def tokens_from_nothing() -> float:
    """Count rows with non-finite logits or with every id masked from which a token is still drawn."""
    nan, inf = torch.full((1, 3), torch.nan), torch.full((1, 3), torch.inf)
    masked = SamplingParams(allowed_token_ids=(0, 2), banned_token_ids=(0, 2))
    rows = [(nan, SamplingParams()), (inf, SamplingParams(temperature=0.0)), (torch.zeros(1, 3), masked)]
    bad = 0
    for logits, params in rows:
        p = sampling.probabilities(logits, [params], [History()])
        with suppress(NoDistribution):
            verification.verify(Mode.REJECTION, p, [NO_DRAFT], [0], [0])
            bad += 1
    return bad


def edited_logits() -> float:
    """Return the largest change to the logits made by computing a distribution.

    Log probabilities are read from them.
    """
    logits = torch.tensor([[1.0, -2.0, 0.5]])
    params = SamplingParams(repetition_penalty=1.5, presence_penalty=1.0, logit_bias={2: 1.0}, top_k=2)
    before = logits.clone()
    sampling.probabilities(logits, [params], [History((0,), (1,))])
    return float((logits - before).abs().max())


def wrong_cuts() -> float:
    """Count cuts that differ from a loop over the tokens, for all small verdicts, end ids and rooms."""
    bad = 0
    for drafted, room in product(range(4), range(1, 5)):
        for accepted in range(drafted + 1):
            for tokens in product((END, 1), repeat=accepted + 1):
                bad += _told(tokens, accepted, drafted, room) != _cut(tokens, accepted, drafted, room)
    return bad


def _told(tokens: tuple[int, ...], accepted: int, drafted: int, room: int) -> Round:
    """The round of a verdict, as far as it is cut."""
    asked = conclude.AskedRound(BASE_LEN, Proposal(Draft((1,) * drafted)), drafted, Fallback.NONE, None, 0.0)
    outcome = Outcome(Verdict(tokens, accepted, drafted), started=0.0, seconds=0.0, offered=drafted)
    told = asked.reported(conclude.cut(tokens, room, frozenset({END})), outcome, Speedup(), cached=0)
    return told._replace(draft=(), drafter="", fallback="", forced=0, timing=Timing())


def _cut(tokens: tuple[int, ...], accepted: int, drafted: int, room: int) -> Round:
    """Cut token by token.

    The round ends at an end token or at the last free position; an end token takes precedence.
    """
    kept: list[int] = []
    finish = None
    for token in tokens:
        kept.append(token)
        if token == END or len(kept) == room:
            finish = FinishReason.STOP if token == END else FinishReason.LENGTH
            break
    origins = Verdict(tokens, accepted, drafted).origins[: len(kept)]
    accepted = sum(origin is Origin.ACCEPTED for origin in origins)
    return Round(base_len=BASE_LEN, tokens=tuple(kept), origins=origins, accepted=accepted, finish=finish)


def wrong_texts() -> float:
    """Count the splits over rounds, of a text with long characters and a stop string, that change the text shown."""
    from gateway.text.detokenizer import Detokenizer
    from gateway.text.output import OutputText

    ids = list(TEXT.encode())
    bad = 0
    for size in range(1, len(ids) + 1):
        output, shown = OutputText(Detokenizer(ByteTokenizer().decode), (STOP,)), ""
        for start in range(0, len(ids), size):
            part = ids[start : start + size]
            shown += "".join(token.text for token in output.take(part, [Origin.PLAIN] * len(part)))
            if output.stop:
                break
        else:
            shown += "".join(token.text for token in output.finish())
        bad += shown != TEXT[: TEXT.index(STOP)]
    return bad


CHECKS: tuple[Check, ...] = (
    count("impossible tokens at u = 0", impossible_tokens),
    count("residuals of p against p", empty_residuals),
    count("ties at temperature 0", broken_ties),
    count("rows without a token", tokens_from_nothing),
    count("logits left alone", edited_logits),
    count("cuts of a round", wrong_cuts),
    count("texts over rounds", wrong_texts),
)
