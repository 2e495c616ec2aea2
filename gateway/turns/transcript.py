"""A turn told round by round: the same rounds make the same events, live or read back, on any gateway."""

from dataclasses import dataclass, replace

from gateway.text.detokenizer import Decode, Detokenizer
from gateway.text.output import OutputText, OutputToken, Taken
from gateway.turns.events import Finished, RejectedToken, Round, Started
from gateway.turns.statistics import Statistics, Summary
from gateway.turns.turn import Header, Turn
from gateway.verifiers.verifier import VerifiedRound
from specdec.errors import InternalError
from specdec.rules.params import FinishReason


@dataclass(frozen=True, slots=True)
class Step:
    """What one round came to."""

    verified: VerifiedRound
    """As it is to be committed: cut where the output ends."""
    shown: Round


class Transcript:
    """The committed tokens of a turn, and what of them may be shown."""

    def __init__(self, turn: Turn, header: Header, decode: Decode) -> None:
        plan = header.plan
        self.turn = turn
        self.header = header
        self.tokens = list(plan.prompt)
        self.finish: FinishReason | None = None
        self._stop = ""
        self._decode = decode
        self._text = OutputText(Detokenizer(decode, plan.prompt), plan.stop, plan.sampling.min_tokens)
        self._statistics = Statistics(plan.speculation)

    @property
    def committed(self) -> int:
        """Output tokens so far."""
        return len(self.tokens) - len(self.header.plan.prompt)

    @property
    def summary(self) -> Summary:
        """What speculation did so far."""
        return self._statistics.summary()

    def take(self, verified: VerifiedRound) -> Step:
        """Add a round; one that ends the turn may be without tokens.

        Raises:
            InternalError: the round is out of place.
        """
        if verified.base_len != len(self.tokens) or self.finish is not None:
            raise InternalError(f"a round begins at {verified.base_len}, not at {len(self.tokens)}")
        taken = self._text.take(verified.tokens, verified.origins, verified.logprobs)
        finish = FinishReason.STOP if taken.stop else verified.finish
        rest = self._text.finish() if finish else Taken(0, ())
        self._stop = taken.stop or rest.stop
        self.finish = FinishReason.STOP if rest.stop else finish
        kept = self._cut(verified, taken.count)
        self.tokens += kept.tokens
        if verified.tokens:
            self._statistics.add(len(kept.draft), kept.accepted, kept.fallback_reason)
        return Step(kept, self._round(kept, (*taken.released, *rest.released)))

    def started(self) -> Started:
        """The first event."""
        header = self.header
        return Started(
            id=self.turn.name,
            created=header.created,
            model=header.model,
            prompt_tokens=header.plan.prompt,
            seed=header.plan.sampling.seed,
            system_fingerprint=header.system_fingerprint,
            session=self.turn.session_id if header.in_session else "",
            turn=self.turn.number,
            form=header.form,
            priority=header.plan.priority,
            choices=header.choices,
        )

    def finished(self) -> Finished:
        """The last event."""
        if self.finish is None:
            raise InternalError("the rounds ended without a finish")
        return Finished(
            reason=self.finish,
            matched_stop=self._stop,
            prompt_tokens=len(self.header.plan.prompt),
            completion_tokens=self.committed,
            summary=self.summary,
        )

    def _cut(self, verified: VerifiedRound, count: int) -> VerifiedRound:
        return replace(
            verified,
            tokens=verified.tokens[:count],
            origins=verified.origins[:count],
            logprobs=verified.logprobs[:count],
            accepted=min(verified.accepted, count),
            finish=self.finish,
        )

    def _round(self, kept: VerifiedRound, tokens: tuple[OutputToken, ...]) -> Round:
        rejected = kept.draft[kept.accepted :]
        return Round(
            text="".join(token.text for token in tokens),
            tokens=tokens,
            rejected=tuple(RejectedToken(token, self._decode([token])) for token in rejected),
            drafted=len(kept.draft),
            accepted=kept.accepted,
            committed=self.committed,
        )
