"""The report of a round, from the round that the verifier sent and the tokens that may be shown."""

from collections.abc import Iterator, Sequence

from gateway.text.detokenizer import Decode
from gateway.text.output import OutputToken
from specdec.wire.generation import GRAMMAR, Round, RoundDetail
from specdec.wire.report import ReportedDraft, ReportedToken, RoundReport


def report_of(kept: Round, shown: Sequence[OutputToken], decode: Decode) -> RoundReport:
    """The report of a round as it was committed; one that was read back has no detail, and its numbers stay unset.

    Args:
        shown: the output tokens whose text is final with the round.
        decode: gives the text of token ids.
    """
    detail, timing = kept.detail or RoundDetail(), kept.timing
    return RoundReport(
        base_len=kept.base_len,
        tokens=tuple(ReportedToken(token.id, token.text, token.origin) for token in shown),
        drafted=tuple(_drafted(kept, detail, decode)),
        accepted=kept.accepted,
        drafter=kept.drafter,
        fallback=kept.fallback,
        gamma=detail.gamma,
        gamma_reason=detail.reason,
        alpha=detail.alpha,
        survival=detail.survival,
        predicted_speedup=kept.speedup.predicted,
        measured_speedup=kept.speedup.measured,
        draft_seconds=timing.draft - detail.network,
        network_seconds=detail.network,
        queue_seconds=timing.queue,
        pass_seconds=timing.verify,
    )


def _drafted(kept: Round, detail: RoundDetail, decode: Decode) -> Iterator[ReportedDraft]:
    judged = detail.judged or (None,) * len(kept.draft)
    for index, (token, own) in enumerate(zip(kept.draft, judged, strict=True)):
        source = kept.drafter if index < len(kept.draft) - kept.forced else GRAMMAR
        numbers = (own.p, own.q, own.u, own.threshold, own.h_norm, own.gamma) if own else ()
        yield ReportedDraft(token, decode([token]), index < kept.accepted, source, *numbers)
