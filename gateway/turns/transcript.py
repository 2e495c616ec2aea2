"""Transcript of a turn: the same rounds produce the same events on any gateway, live or read from the store.

Rounds read from the store lack timing, speed-up and detail, which the store does not keep.
"""

from collections import Counter
from collections.abc import Iterator, Sequence

from gateway.store.values import TurnView
from gateway.text.detokenizer import Decode, Detokenizer
from gateway.text.output import OutputText, OutputToken
from gateway.turns.events import Finished, OutputRound, RejectedToken
from gateway.turns.statistics import Summary, Tally, added, tallies_of
from gateway.turns.turn import Header, Turn, header_from_bytes, log_of
from specdec.beams.options import BeamReport
from specdec.errors import InternalError
from specdec.rules.speculation import Origin
from specdec.sampling.params import FinishReason
from specdec.wire.generation import GRAMMAR, Round, RoundDetail, Speedup
from specdec.wire.report import ReportedDraft, ReportedToken, RoundReport


class Transcript:
    """Tokens of a turn so far, its statistics, and its final text."""

    def __init__(self, turn: Turn, header: Header, decode: Decode) -> None:
        self.turn = turn
        self.header = header
        self.tokens = list(header.prompt)
        """The prompt, then the committed output."""
        self.finish: FinishReason | None = None
        self._cached = 0
        """Prompt tokens that the first verifier took from its prefix cache."""
        self._decode = decode
        self._text = _text_of(header, decode)
        self._rounds: Counter[tuple[int, int, str]] = Counter()
        self._speedup = Speedup()
        self._drafters: dict[str, Tally] = {}
        self._beams: BeamReport | None = None

    @property
    def committed(self) -> int:
        """Number of output tokens so far."""
        return len(self.tokens) - len(self.header.prompt)

    @property
    def summary(self) -> Summary:
        """Speculation statistics so far."""
        asked = self.header.call.speculation
        return Summary(asked, Counter(self._rounds), self._speedup, self._drafters, self._beams)

    def take(self, verified: Round) -> tuple[Round, OutputRound]:
        """Add a round; a round that ends the turn may have no tokens.

        Returns:
            The round to commit, cut where the output ends, and the output to show after the commit.

        Raises:
            InternalError: the round does not continue the tokens, or the turn has ended.
        """
        if verified.base_len != len(self.tokens) or self.finish is not None:
            raise InternalError(f"a round begins at {verified.base_len}, not at {len(self.tokens)}")
        scores = None
        if not self.committed:
            self._cached = verified.cached_tokens
            scores = verified.prompt_logprobs if self.header.call.prompt_logprobs is not None else None
        shown = self._text.take(verified.tokens, verified.origins, verified.logprobs)
        if verified.finish or self._text.stop:
            shown += self._text.finish()
            if not (self._text.stop or self.header.shows_stop):
                shown = self._without_end(shown)
        self.finish = FinishReason.STOP if self._text.stop else verified.finish
        kept = self._cut(verified, self._text.length - self.committed)
        self.tokens += kept.tokens
        self._speedup, self._beams = verified.speedup, verified.beams or self._beams
        if verified.tokens:
            # A plain round commits one token, so a round without a draft counts as one round per token.
            self._rounds[len(kept.draft), kept.accepted, kept.fallback] += 1 if kept.draft else len(kept.tokens)
            self._drafters = added(self._drafters, tallies_of(kept))
        return kept, self._output_round(kept, shown)._replace(prompt_logprobs=scores)

    def finished(self) -> Finished:
        """Return the last event; raises InternalError if the turn has not ended."""
        if self.finish is None:
            raise InternalError("the rounds ended without a finish")
        return Finished(
            reason=self.finish,
            matched_stop=self._text.stop,
            prompt_tokens=len(self.header.prompt),
            completion_tokens=self.committed,
            cached_tokens=self._cached,
            summary=self.summary,
        )

    def _cut(self, verified: Round, count: int) -> Round:
        """Return the round cut to its first `count` tokens, with the turn's finish after it."""
        if count == len(verified.tokens) and self.finish is verified.finish:
            return verified
        return verified._replace(
            tokens=verified.tokens[:count],
            origins=verified.origins[:count],
            logprobs=verified.logprobs[:count],
            accepted=min(verified.accepted, count),
            finish=self.finish,
        )

    def _without_end(self, shown: tuple[OutputToken, ...]) -> tuple[OutputToken, ...]:
        """Return the tokens with the name of the final end token removed, if special tokens are shown by name."""
        if not (shown and self.header.shows_special and shown[-1].id in self.header.call.stop_token_ids):
            return shown
        name = self._decode.special.get(shown[-1].id, "")
        return (*shown[:-1], shown[-1]._replace(text=shown[-1].text.removesuffix(name)))

    def _output_round(self, kept: Round, shown: tuple[OutputToken, ...]) -> OutputRound:
        rejected = kept.draft[kept.accepted :]
        return OutputRound(
            text="".join(token.text for token in shown),
            tokens=shown,
            rejected=tuple(RejectedToken(token, self._decode) for token in rejected),
            drafted=len(kept.draft),
            accepted=kept.accepted,
            committed=self.committed,
            report=report_of(kept, shown, self._decode) if self.header.call.speculation.detail else None,
        )


def history_of(last: TurnView, decode: Decode) -> tuple[int, ...]:
    """Return all tokens of a session without the stop string that ended its last turn, which was read as a whole.

    Raises:
        SessionDiverged: the store's content differs from what was written.
    """
    tokens, header = log_of(last), header_from_bytes(last.params, last.prompt)
    if not header.stop:
        return tokens
    begin, text = len(header.prompt), _text_of(header, decode)
    text.take(tokens[begin:], [Origin.PLAIN] * (len(tokens) - begin))
    if not text.stop:
        text.finish()
    return tokens[: begin + text.kept]


def _text_of(header: Header, decode: Decode) -> OutputText:
    """Return the empty output text of a turn."""
    detokenizer = Detokenizer(decode.with_special if header.shows_special else decode, header.prompt)
    return OutputText(detokenizer, header.stop, header.call.sampling.min_tokens, header.shows_stop)


def report_of(kept: Round, shown: Sequence[OutputToken], decode: Decode) -> RoundReport:
    """Return the report of a committed round. Numbers that the store does not keep stay unset.

    Args:
        shown: output tokens whose text became final with the round.
        decode: decoder from token ids to text.
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
        draft_seconds=max(0.0, timing.draft - detail.network),
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
