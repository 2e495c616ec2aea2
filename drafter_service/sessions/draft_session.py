"""One session's tokens: the committed ones, then the chain of drafts that continues them."""

import time
from collections.abc import Sequence

from drafter_service.sessions.refusal import SessionRefused, check_open
from specdec.planning.certainty import Certainty
from specdec.planning.gamma import AcceptanceEstimate
from specdec.planning.gamma_policy import GammaPolicy, PolicyKind
from specdec.rules.draft import Draft, DraftStep, SparseProbs
from specdec.rules.prefix import PrefixHash, common_length
from specdec.rules.speculation import Mode
from specdec.sampling.distribution import History
from specdec.wire.draft import DraftTokens
from specdec.wire.session import Commit, DraftEnd, NackReason, Open

_LIKELY = 0.4
"""Minimum probability of use at which the drafter drafts ahead of a request."""


class DraftSession:
    """A session's committed tokens, its draft chain, and the number of drafts still wanted."""

    def __init__(self, key: str, opened: Open, context_length: int) -> None:
        """Start without drafts. `key` names the session in this process, unique among all streams.

        Raises:
            SessionRefused: the message is invalid.
        """
        check_open(opened)
        self.key = key
        self.opened = opened
        self.session_id = opened.session_id
        self.epoch = opened.epoch
        self.params = opened.params
        self.mode = opened.mode
        self.domain = opened.cache_salt
        """Domain of the session. Only sessions of one domain share computed prefixes."""
        self.traceparent = opened.traceparent
        """Trace context of the span that the drafts belong to; empty for none."""
        self.asked_at = time.time_ns()
        """Time at which the next draft was requested or begun, in nanoseconds of Unix time."""
        self.last_message = 0.0
        """Time of the verifier's last message, in seconds of the session table's clock."""
        self.limit = min(opened.max_len, context_length)
        """Maximum number of tokens, committed and drafted together."""
        self.chain_start = len(opened.tokens)
        """Committed length at which the draft chain began."""
        self.admitted = False
        """Whether the drafter has admitted the sequence; otherwise nothing can be drafted for it."""
        self.outcomes = 0 if opened.policy.reads_certainty or opened.params.grammar else opened.outcomes
        """Maximum number of verdict outcomes to push chains for. It is 0 for a chain whose end depends on the draws,
        since its set of outcomes would depend on draws that are repeated later. It is also 0 with a grammar, which
        takes long to compile."""
        self.alternatives: list[Sequence[int]] = []
        """For each draft, the other likely tokens at its position."""
        self.prompt_len = opened.prompt_len
        self.gamma = opened.gamma
        """Length of the requested draft, in tokens."""
        self._tokens = list(opened.tokens)
        self._committed = len(opened.tokens)
        self._committed_hash = self._hash = self._sent_hash = PrefixHash(opened.tokens)
        self._sent = len(opened.tokens)
        self._unsent: list[tuple[SparseProbs | None, DraftStep | None]] = []
        self._end_sent = False
        self._stopped = False
        self._length = ChainLength(opened.policy)
        self.guesses = AcceptanceEstimate(prior=1.0)
        """Estimated acceptance of drafts, counting the token after the requested draft too."""

    def __len__(self) -> int:
        """Return the number of committed and drafted tokens."""
        return len(self._tokens)

    @property
    def drafted(self) -> int:
        """Length of the draft chain."""
        return len(self._tokens) - self._committed

    @property
    def committed(self) -> int:
        """Number of committed tokens."""
        return self._committed

    @property
    def history(self) -> History:
        """Tokens that penalties count. Empty without penalties, to avoid copying a long sequence in every step."""
        if not self.params.needs_history:
            return History()
        return History(self._tokens[: self.prompt_len], self.output)

    @property
    def output(self) -> list[int]:
        """Tokens after the prompt."""
        return self._tokens[self.prompt_len :]

    @property
    def is_drawn(self) -> bool:
        """Whether the law of the output depends on which drafts are judged. At temperature 0 and in mode coupled the
        output does not depend on drafts at all."""
        return self.mode in (Mode.REJECTION, Mode.BLOCK) and self.params.temperature > 0.0

    @property
    def branches(self) -> int:
        """Number of tokens that a step computes in addition to the sequence's own."""
        return 0

    @property
    def verifier_waits(self) -> bool:
        """Whether the requested draft is incomplete and can still grow."""
        return self.drafted < self.gamma and not self._at_end

    def wants_draft(self, ahead: int) -> bool:
        """Whether the chain may grow, up to `ahead` tokens beyond the requested draft."""
        return self.wanted(ahead) > 0 and not self._stopped

    def wanted(self, ahead: int) -> int:
        """Return the number of tokens that the chain may still grow, up to `ahead` beyond the requested draft.

        The next round can use at most the bonus token and another draft of length γ. It can use them only if all
        earlier drafts and the bonus token were guessed right. When that is unlikely, nothing is drafted ahead, to
        leave time for other work.
        """
        further = min(ahead, self.gamma + 1) if self.gamma and (self._is_likely or self.outcomes) else 0
        return min(self.gamma + further - self.drafted, self.limit - len(self._tokens))

    def is_due(self, ahead: int) -> bool:
        """Whether to send the drafts now: the requested draft is just complete, or the chain cannot grow."""
        return self.drafted == self.gamma or not self.wants_draft(ahead)

    def stop_drafting(self) -> None:
        """Stop drafting until the next commit, because the drafter has no next token."""
        self._stopped = True

    def tokens_from(self, position: int) -> list[int]:
        return self._tokens[position:]

    @property
    def reads_certainty(self) -> bool:
        """Whether the certainty of a draft can end the chain after it."""
        return self._length.policy.reads_certainty

    def extend(
        self,
        token: int,
        probs: SparseProbs | None = None,
        certainty: Certainty | None = None,
        alternatives: Sequence[int] = (),
    ) -> None:
        """Add a draft token, and end the chain after it if the policy says so.

        Args:
            probs: distribution that the token was drawn from; None in a mode that sends none.
            certainty: certainty of the model; None if unknown, which never ends the chain.
            alternatives: other likely tokens at this position, most likely first.
        """
        self._tokens.append(token)
        self.alternatives.append(alternatives)
        self._hash = self._hash.extended((token,))
        step = None if certainty is None else self._length.step(self.gamma, certainty)
        self._unsent.append((probs, step))
        if certainty is not None and self._length.ends(self.drafted, certainty, step):
            self.stop_drafting()

    def take_unsent(self) -> DraftTokens | None:
        """Return the unsent drafts, fenced by the hash of all tokens before them, or None if there are none."""
        if not self._unsent:
            return None
        probs = tuple(law for law, _ in self._unsent if law is not None)
        steps = tuple(step for _, step in self._unsent)
        draft = Draft(tuple(self._tokens[self._sent :]), probs, steps if any(steps) else ())
        chunk = DraftTokens(self.session_id, self.epoch, self._sent, self._sent_hash.value, draft)
        self._mark_sent()
        return chunk

    def take_end(self) -> DraftEnd | None:
        """Return the end of the chain, once per commit, if the requested draft cannot be completed."""
        return self._end(ended=self.drafted < self.gamma and self._at_end)

    def _end(self, *, ended: bool) -> DraftEnd | None:
        sent, self._end_sent = self._end_sent, ended
        return DraftEnd(self.session_id, self.epoch, len(self), self._hash.value) if ended and not sent else None

    def commit(self, message: Commit) -> int:
        """Commit tokens. Later drafts stay valid if the committed tokens are the drafted ones.

        A verifier that must not use the rest of the chain reopens the session instead of committing. In block mode, a
        draft that a verdict examined without committing must never be verified again.

        Returns:
            Number of earlier tokens that are still valid. Computed state of the others must be discarded.

        Raises:
            SessionRefused: the epoch is not the session's, or the tokens do not continue the committed ones.
        """
        self._check_epoch(message.epoch)
        tokens = self._new_tokens(message)
        if message.base_len + len(message.tokens) < self._committed:
            return len(self._tokens)
        self.gamma = message.gamma
        self._end_sent = self._stopped = False
        return self._advance(tokens)

    def adopt(self, outcome: "DraftSession") -> None:
        """Take over the chain of an outcome that came true. The outcome gets this session's memory in exchange."""
        self.key, outcome.key = outcome.key, self.key
        self.admitted, outcome.admitted = outcome.admitted, self.admitted
        self._tokens, self._hash = outcome._tokens, outcome._hash
        self._sent, self._sent_hash, self._unsent = outcome._sent, outcome._sent_hash, outcome._unsent
        self.alternatives, self._stopped, self.chain_start = outcome.alternatives, outcome._stopped, outcome.chain_start

    @property
    def _is_likely(self) -> bool:
        """Whether the target will probably commit the requested draft and the token after it."""
        return self.guesses.alpha ** (self.gamma + 1) >= _LIKELY

    @property
    def _at_end(self) -> bool:
        """Whether the chain cannot grow further."""
        return self._stopped or len(self._tokens) >= self.limit

    def _mark_sent(self) -> None:
        self._sent, self._sent_hash = len(self._tokens), self._hash
        self._unsent.clear()

    def _check_epoch(self, epoch: int) -> None:
        if epoch < self.epoch:
            raise SessionRefused(NackReason.STALE, f"epoch {epoch}, the session is at {self.epoch}")
        if epoch > self.epoch:
            raise SessionRefused(NackReason.UNKNOWN, f"epoch {epoch} was never opened, the session is at {self.epoch}")

    def _new_tokens(self, message: Commit) -> tuple[int, ...]:
        """Return the tokens not committed yet. Tokens that were sent before must not have changed."""
        known = self._committed - message.base_len
        if known < 0:
            raise SessionRefused(
                NackReason.STALE, f"commit from {message.base_len}, only {self._committed} tokens are known"
            )
        before = tuple(self._tokens[message.base_len : self._committed])
        if message.tokens[:known] != before[: len(message.tokens)]:
            raise SessionRefused(NackReason.STALE, f"commit from {message.base_len} contradicts an earlier one")
        return message.tokens[known:]

    def _advance(self, tokens: tuple[int, ...]) -> int:
        """Commit new tokens. Return the number of earlier tokens that are still valid."""
        same = common_length(self._tokens[self._committed :], tokens)
        self.guesses = self.guesses.observed(min(len(tokens), self.drafted), same)
        valid = self._committed + same
        self._committed_hash = self._committed_hash.extended(tokens)
        if same == len(tokens):
            valid = len(self._tokens)
            del self.alternatives[: len(tokens)]
        else:
            self.alternatives.clear()
            self._tokens[self._committed :] = tokens
            self._hash = self._committed_hash
            self._mark_sent()
        self._committed += len(tokens)
        if not self.drafted:
            self.chain_start = self._committed
        return valid


class ChainLength:
    """Draft-length policy of one session, with its entropy average."""

    def __init__(self, policy: GammaPolicy) -> None:
        self.policy = policy
        self._entropy: float | None = None
        """Exponential moving average of H_norm over all drafts of the session."""

    def step(self, gamma: int, certainty: Certainty) -> DraftStep | None:
        """Add the entropy of one more draft to the average. Return None unless the policy chooses γ by entropy.

        Args:
            gamma: maximum number of requested drafts.
        """
        policy, earlier, newest = self.policy, self._entropy, min(certainty.entropy, 1.0)
        if policy.policy is not PolicyKind.EGAG:
            return None
        self._entropy = newest if earlier is None else policy.ema * earlier + (1.0 - policy.ema) * newest
        return DraftStep(newest, self._most(gamma, self._entropy))

    def ends(self, drafted: int, certainty: Certainty, step: DraftStep | None) -> bool:
        """Whether a chain of `drafted` tokens ends here.

        Args:
            certainty: certainty of the last token.
            step: result of `step` for that token.
        """
        return certainty.confidence < self.policy.min_confidence or (step is not None and drafted >= step.gamma)

    def _most(self, gamma: int, entropy: float) -> int:
        """Return γ = γ_min + (γ_max - γ_min)(1 - H_norm), rounded; γ_max is the requested length."""
        return round(self.policy.min + (gamma - self.policy.min) * (1.0 - entropy))
