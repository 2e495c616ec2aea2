"""One session's tokens: the committed ones first, then the chain of drafts that continues them."""

import time
from collections.abc import Sequence

from drafter_service.sessions.refusal import SessionRefused, check_open
from specdec.planning.certainty import Certainty
from specdec.planning.gamma import AcceptanceEstimate
from specdec.planning.gamma_policy import GammaPolicy, PolicyKind
from specdec.rules.draft import Draft, DraftStep, SparseProbs
from specdec.rules.prefix import PrefixHash, common_length
from specdec.sampling.distribution import History
from specdec.wire.draft import DraftTokens
from specdec.wire.session import Commit, NackReason, Open

_LIKELY = 0.4
"""Least chance of being used at which drafts are made that nobody has asked for."""


class DraftSession:
    """What is known of a sequence, what has been drafted behind it, and how much more is wanted."""

    def __init__(self, key: str, opened: Open, context_length: int) -> None:
        """Begin without drafts; `key` is the session's name in this process, unique among all streams.

        Raises:
            SessionRefused: the message makes no sense.
        """
        check_open(opened)
        self.key = key
        self.opened = opened
        self.session_id = opened.session_id
        self.epoch = opened.epoch
        self.params = opened.params
        self.mode = opened.mode
        self.domain = opened.cache_salt
        """Computed prefixes are shared only among sessions of one domain."""
        self.traceparent = opened.traceparent
        """The span that its drafts belong to; empty for none."""
        self.asked_at = time.time_ns()
        """When the draft that comes next was asked for or begun, in nanoseconds of Unix time."""
        self.last_message = 0.0
        """When the last message of its verifier came, in seconds of the session table's clock."""
        self.limit = min(opened.max_len, context_length)
        """Most tokens, committed and drafted together."""
        self.chain_start = len(opened.tokens)
        """Committed length at which the chain of drafts began."""
        self.admitted = False
        """Whether the drafter has let the sequence in; without that, nothing can be drafted for it."""
        self.outcomes = 0 if opened.policy.reads_certainty or opened.params.grammar else opened.outcomes
        """Most outcomes of a verdict that chains are pushed for. A chain whose end depends on what was drawn has none:
        which outcomes it has would depend on draws that are made again behind them. Grammars take long to compile."""
        self.rivals: list[Sequence[int]] = []
        """Of each draft, the other tokens that were likely in its place."""
        self.prompt_len = opened.prompt_len
        self.gamma = opened.gamma
        """Length of the draft that is asked for."""
        self._tokens = list(opened.tokens)
        self._committed = len(opened.tokens)
        self._committed_hash = self._hash = self._sent_hash = PrefixHash(opened.tokens)
        self._sent = len(opened.tokens)
        self._unsent: list[tuple[SparseProbs | None, DraftStep | None]] = []
        self._end_sent = False
        self._stopped = False
        self._length = ChainLength(opened.policy)
        self.guesses = AcceptanceEstimate(prior=1.0)
        """How many of the drafts were what was committed in their places, the token behind the draft asked for too."""

    def __len__(self) -> int:
        """Committed and drafted tokens."""
        return len(self._tokens)

    @property
    def drafted(self) -> int:
        """Length of the chain of drafts."""
        return len(self._tokens) - self._committed

    @property
    def committed(self) -> int:
        """Number of committed tokens."""
        return self._committed

    @property
    def history(self) -> History:
        """The tokens that penalties count; empty without penalties, to spare copying a long sequence every step."""
        if not self.params.needs_history:
            return History()
        return History(self._tokens[: self.prompt_len], self.output)

    @property
    def output(self) -> list[int]:
        """The tokens behind the prompt."""
        return self._tokens[self.prompt_len :]

    @property
    def branches(self) -> int:
        """Tokens that a step computes behind the sequence's own."""
        return 0

    @property
    def verifier_waits(self) -> bool:
        """Whether the draft that the verifier asked for is not complete and can still grow."""
        return self.drafted < self.gamma and not self._at_end

    def wants_draft(self, ahead: int) -> bool:
        """Whether the chain may grow, up to `ahead` tokens past the draft that was asked for."""
        return self.wanted(ahead) > 0 and not self._stopped

    def wanted(self, ahead: int) -> int:
        """How many tokens the chain may still grow, up to `ahead` past the draft that was asked for.

        The next round can use the bonus token and as long a draft again, so the chain never gets longer than that. It
        can use them only where all drafts before them and the bonus token are guessed right, so where that has become
        unlikely nothing is drafted ahead: it would only take time from other work.
        """
        unasked = min(ahead, self.gamma + 1) if self.gamma and (self._is_likely or self.outcomes) else 0
        return min(self.gamma + unasked - self.drafted, self.limit - len(self._tokens))

    def is_due(self, ahead: int) -> bool:
        """Whether to send the drafts now: the draft asked for is just complete, or the chain grows no more."""
        return self.drafted == self.gamma or not self.wants_draft(ahead)

    def stop_drafting(self) -> None:
        """Draft nothing more until the next commit, because the drafter has no token for what follows."""
        self._stopped = True

    def tokens_from(self, position: int) -> list[int]:
        return self._tokens[position:]

    @property
    def reads_certainty(self) -> bool:
        """Whether the certainty of a draft can end the chain behind it."""
        return self._length.policy.reads_certainty

    def extend(
        self,
        token: int,
        probs: SparseProbs | None = None,
        certainty: Certainty | None = None,
        rivals: Sequence[int] = (),
    ) -> None:
        """Add a draft token, and end the chain behind it where the policy says so.

        Args:
            probs: the distribution it was drawn from, None in a mode that sends none.
            certainty: how sure the model was, None where that is unknown and ends nothing.
            rivals: the other tokens that are likely in its place, the likeliest first.
        """
        self._tokens.append(token)
        self.rivals.append(rivals)
        self._hash = self._hash.extended((token,))
        step = None if certainty is None else self._length.step(self.gamma, certainty)
        self._unsent.append((probs, step))
        if certainty is not None and self._length.ends(self.drafted, certainty, step):
            self.stop_drafting()

    def take_unsent(self) -> DraftTokens | None:
        """The drafts that have not been handed out, fenced by all tokens before them; None when there are none."""
        if not self._unsent:
            return None
        probs = tuple(law for law, _ in self._unsent if law is not None)
        steps = tuple(step for _, step in self._unsent)
        draft = Draft(tuple(self._tokens[self._sent :]), probs, steps if any(steps) else ())
        chunk = DraftTokens(self.session_id, self.epoch, self._sent, self._sent_hash.value, draft)
        self._mark_sent()
        return chunk

    def take_end(self) -> bool:
        """Whether to say, once per commit, that the draft asked for cannot be completed."""
        ended = self.drafted < self.gamma and self._at_end
        sent, self._end_sent = self._end_sent, ended
        return ended and not sent

    def commit(self, message: Commit) -> int:
        """Commit tokens; drafts behind them stay when the committed tokens are the ones that were drafted.

        A verifier that must not use the rest of the chain opens the session again instead of committing: in block mode
        a draft that a verdict has looked at and not committed must never be looked at again.

        Returns:
            How many of the tokens known before are still valid; what was computed of the others is void.

        Raises:
            SessionRefused: an epoch that is not the session's, or tokens that do not continue the committed ones.
        """
        self._check_epoch(message.epoch)
        tokens = self._new_tokens(message)
        if message.base_len + len(message.tokens) < self._committed:
            return len(self._tokens)
        self.gamma = message.gamma
        self._end_sent = self._stopped = False
        return self._advance(tokens)

    def adopt(self, outcome: "DraftSession") -> None:
        """Go on with the chain of an outcome that has come true; the outcome gets this session's memory in exchange."""
        self.key, outcome.key = outcome.key, self.key
        self.admitted, outcome.admitted = outcome.admitted, self.admitted
        self._tokens, self._hash = outcome._tokens, outcome._hash
        self._sent, self._sent_hash, self._unsent = outcome._sent, outcome._sent_hash, outcome._unsent
        self.rivals, self._stopped, self.chain_start = outcome.rivals, outcome._stopped, outcome.chain_start

    @property
    def _is_likely(self) -> bool:
        """Whether the draft asked for and the token behind it are likely to be what is committed next."""
        return self.guesses.alpha ** (self.gamma + 1) >= _LIKELY

    @property
    def _at_end(self) -> bool:
        """Whether the chain cannot grow any more."""
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
        """The tokens that are not committed yet; those that were sent before must be the same as then."""
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
        """Commit tokens that are new; returns how many of the tokens known before are still valid."""
        same = common_length(self._tokens[self._committed :], tokens)
        self.guesses = self.guesses.observed(min(len(tokens), self.drafted), same)
        valid = self._committed + same
        self._committed_hash = self._committed_hash.extended(tokens)
        if same == len(tokens):
            valid = len(self._tokens)
            del self.rivals[: len(tokens)]
        else:
            self.rivals.clear()
            self._tokens[self._committed :] = tokens
            self._hash = self._committed_hash
            self._mark_sent()
        self._committed += len(tokens)
        if not self.drafted:
            self.chain_start = self._committed
        return valid


class ChainLength:
    """The policy of one session, and the entropies that it has seen."""

    def __init__(self, policy: GammaPolicy) -> None:
        self.policy = policy
        self._entropy: float | None = None
        """Exponential moving average of H_norm, over all drafts of the session."""

    def step(self, gamma: int, certainty: Certainty) -> DraftStep | None:
        """Add the entropy of one more draft to the average; None unless γ is chosen by entropy.

        Args:
            gamma: most drafts that are asked for.
        """
        policy, earlier, newest = self.policy, self._entropy, min(certainty.entropy, 1.0)
        if policy.policy is not PolicyKind.EGAG:
            return None
        self._entropy = newest if earlier is None else policy.ema * earlier + (1.0 - policy.ema) * newest
        return DraftStep(newest, self._most(gamma, self._entropy))

    def ends(self, drafted: int, certainty: Certainty, step: DraftStep | None) -> bool:
        """Whether a chain of `drafted` tokens ends.

        Args:
            certainty: that of the last token.
            step: the value of `step` for that token.
        """
        return certainty.confidence < self.policy.min_confidence or (step is not None and drafted >= step.gamma)

    def _most(self, gamma: int, entropy: float) -> int:
        """γ = γ_min + (γ_max - γ_min)(1 - H_norm), rounded; γ_max is what is asked for."""
        return round(self.policy.min + (gamma - self.policy.min) * (1.0 - entropy))
