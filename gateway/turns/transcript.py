"""The output of a turn, round by round: the same rounds make the same events on any gateway, live or read back.

Only what the session store does not keep of a round is missing where it was read back: timing, speed-up and detail.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

from gateway.store.values import TurnView
from gateway.text.detokenizer import Decode, Detokenizer
from gateway.text.output import OutputText, OutputToken
from gateway.turns.events import Finished, OutputRound, RejectedToken
from gateway.turns.statistics import Summary, Tally, added, tallies_of
from gateway.turns.turn import Header, Turn, header_from_bytes, log_of
from specdec.errors import InternalError
from specdec.rules.speculation import Origin
from specdec.sampling.params import FinishReason
from specdec.wire.generation import GRAMMAR, Round, RoundDetail, Speedup
from specdec.wire.report import ReportedDraft, ReportedToken, RoundReport


class Transcript:
    """The tokens of a turn so far, its statistics, and the text that may be shown."""

    def __init__(self, turn: Turn, header: Header, decode: Decode) -> None:
        self.turn = turn
        self.header = header
        self.tokens = list(header.prompt)
        """The prompt, then the committed output."""
        self.finish: FinishReason | None = None
        self._cached = 0
        """Tokens of the prompt that the first verifier did not compute anew."""
        self._decode = decode
        self._text = _text_of(header, decode)
        self._rounds: Counter[tuple[int, int, str]] = Counter()
        self._speedup = Speedup()
        self._drafters: dict[str, Tally] = {}

    @property
    def committed(self) -> int:
        """Number of output tokens so far."""
        return len(self.tokens) - len(self.header.prompt)

    @property
    def summary(self) -> Summary:
        """What speculation did so far."""
        return Summary(self.header.call.speculation, Counter(self._rounds), self._speedup, self._drafters)

    def take(self, verified: Round) -> tuple[Round, OutputRound]:
        """Add a round; a round that ends the turn may have no tokens.

        Returns:
            The round as it will be committed, cut where the output ends, and what of the output may be shown after it.

        Raises:
            InternalError: the round does not begin where the tokens end, or the turn has ended.
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
        self._speedup = verified.speedup
        if verified.tokens:
            # A plain round commits one token: a round without a draft stands for as many of them as it has tokens.
            self._rounds[len(kept.draft), kept.accepted, kept.fallback] += 1 if kept.draft else len(kept.tokens)
            self._drafters = added(self._drafters, tallies_of(kept))
        return kept, replace(self._output_round(kept, shown), prompt_logprobs=scores)

    def finished(self) -> Finished:
        """The last event; raises InternalError when the turn has not ended."""
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
        """The round with its first `count` tokens, and with the finish that the turn has after it."""
        if count == len(verified.tokens) and self.finish is verified.finish:
            return verified
        return replace(
            verified,
            tokens=verified.tokens[:count],
            origins=verified.origins[:count],
            logprobs=verified.logprobs[:count],
            accepted=min(verified.accepted, count),
            finish=self.finish,
        )

    def _without_end(self, shown: tuple[OutputToken, ...]) -> tuple[OutputToken, ...]:
        """The tokens without the name of the one that ends the output, where special tokens have names."""
        if not (shown and self.header.shows_special and shown[-1].id in self.header.call.stop_token_ids):
            return shown
        name = self._decode.special.get(shown[-1].id, "")
        return (*shown[:-1], replace(shown[-1], text=shown[-1].text.removesuffix(name)))

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
    """All tokens of a session, whose last turn was read as a whole, without those of the stop string that ended it.

    Raises:
        SessionDiverged: the store has not what was written.
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
    """The text of a turn's output, before it has any."""
    detokenizer = Detokenizer(decode.with_special if header.shows_special else decode, header.prompt)
    return OutputText(detokenizer, header.stop, header.call.sampling.min_tokens, header.shows_stop)


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
