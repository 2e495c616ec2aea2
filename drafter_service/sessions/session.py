"""One session's tokens: first the committed ones, then the chain of drafts that continues them."""

from collections.abc import Sequence

from drafter_service.sessions.messages import Reason, Refused
from specdec.rules.draft import Draft, SparseProbs
from specdec.rules.params import Mode
from specdec.rules.prefix import PrefixHash
from specdec.rules.sampling import History
from specdec.wire.draft import DraftTokens
from specdec.wire.session import Commit, Open


class Session:
    """What is known of a sequence, what has been drafted behind it, and how much more is wanted."""

    def __init__(self, key: str, opened: Open, context_length: int) -> None:
        """Begin without drafts.

        Args:
            key: the session's name in this process.
            opened: the message that begins it.
            context_length: longest sequence of the drafter's model.

        Raises:
            Refused: the message makes no sense.
        """
        _check(opened)
        self.key = key
        self.session_id = opened.session_id
        self.epoch = opened.epoch
        self.params = opened.params
        self.mode = opened.mode
        self.domain = opened.cache_salt
        """KV is shared inside it only."""
        self.heard = 0.0
        """When its verifier last spoke of it."""
        self.limit = min(opened.max_len, context_length)
        """Committed and drafted tokens never get more than this together."""
        self.start = len(opened.tokens)
        """Committed length at which the chain of drafts began."""
        self.has_room = False
        """Whether the drafter keeps KV for it; without, it is too long to be drafted for."""
        self._prompt_len = opened.prompt_len
        self._gamma = opened.gamma
        self._tokens = list(opened.tokens)
        self._committed = len(opened.tokens)
        self._committed_hash = self._hash = self._sent_hash = PrefixHash(opened.tokens)
        self._sent = len(opened.tokens)
        self._unsent: list[SparseProbs | None] = []
        self._end_told = False
        self._at_a_loss = False

    def __len__(self) -> int:
        """Committed and drafted tokens."""
        return len(self._tokens)

    @property
    def drafted(self) -> int:
        """Length of the chain."""
        return len(self._tokens) - self._committed

    @property
    def history(self) -> History:
        """What penalties count; empty when the request has none, which spares copying a long sequence every step."""
        if not self.params.needs_history:
            return History()
        return History(self._tokens[: self._prompt_len], self._tokens[self._prompt_len :])

    def settled(self, ahead: int) -> bool:
        """Whether the draft asked for has just become whole, or the chain grows no more until a verdict."""
        return self.drafted == self._gamma or not self.wants(ahead)

    @property
    def urgent(self) -> bool:
        """Whether the verifier waits: the draft it asked for is not complete and can still grow."""
        return self.drafted < self._gamma and not self._over

    def wants(self, ahead: int) -> bool:
        """Whether the chain may grow, up to `ahead` tokens past the draft that was asked for.

        The bonus token and as long a draft again are the most that the next round can use.
        """
        return self.drafted < self._gamma + min(ahead, self._gamma + 1) and self._gamma > 0 and not self._over

    def stop_drafting(self) -> None:
        """There is no guess for what follows, until a verdict says more."""
        self._at_a_loss = True

    def since(self, length: int) -> list[int]:
        """The tokens from position `length` on."""
        return self._tokens[length:]

    def shared_with(self, tokens: Sequence[int]) -> int:
        """Length of the common prefix with `tokens`."""
        return _common(self._tokens, tokens)

    def extend(self, token: int, probs: SparseProbs | None = None) -> None:
        """Add a draft; `probs` is what it was drawn from, None in a mode that sends no q̂."""
        self._tokens.append(token)
        self._unsent.append(probs)
        self._hash = self._hash.extended((token,))

    def take_unsent(self) -> DraftTokens | None:
        """The drafts that have not been handed out, fenced by all tokens before them; None when there are none."""
        if not self._unsent:
            return None
        probs = tuple(each for each in self._unsent if each is not None)
        draft = Draft(tuple(self._tokens[self._sent :]), probs)
        chunk = DraftTokens(self.session_id, self.epoch, self._sent, self._sent_hash.value, draft)
        self._all_sent()
        return chunk

    def commit(self, message: Commit) -> int:
        """Take a verdict; what was drafted behind its tokens stays when they were drafted too.

        A verifier that may not look at the rest of the chain again, as in block mode when a verdict has looked at it
        and not committed it, opens the session again instead.

        Returns:
            How many of the tokens known before still stand: KV behind them is void.

        Raises:
            Refused: stale, unknown epoch, or tokens that do not continue the committed ones.
        """
        self._check_epoch(message.epoch)
        tokens = self._news(message)
        if message.base_len + len(message.tokens) >= self._committed:
            self._gamma = message.gamma
            self._end_told = self._at_a_loss = False
            return self._advance(tokens)
        return len(self._tokens)

    def take_end(self) -> bool:
        """Whether to say, once per verdict, that the draft asked for cannot be completed."""
        over = self.drafted < self._gamma and self._over
        told, self._end_told = self._end_told, over
        return over and not told

    @property
    def _over(self) -> bool:
        """Whether the chain can grow no more."""
        return self._at_a_loss or len(self._tokens) >= self.limit

    def _all_sent(self) -> None:
        self._sent, self._sent_hash = len(self._tokens), self._hash
        self._unsent.clear()

    def _check_epoch(self, epoch: int) -> None:
        if epoch < self.epoch:
            raise Refused(Reason.STALE, f"epoch {epoch}, the session is at {self.epoch}")
        if epoch > self.epoch:
            raise Refused(Reason.UNKNOWN, f"epoch {epoch} was never opened, the session is at {self.epoch}")

    def _news(self, message: Commit) -> tuple[int, ...]:
        """The tokens that are not committed yet; those sent again must be the same."""
        again = self._committed - message.base_len
        if again < 0:
            raise Refused(Reason.STALE, f"commit from {message.base_len}, only {self._committed} tokens are known")
        known = tuple(self._tokens[message.base_len : self._committed])
        if message.tokens[:again] != known[: len(message.tokens)]:
            raise Refused(Reason.STALE, f"commit from {message.base_len} contradicts an earlier one")
        return message.tokens[again:]

    def _advance(self, tokens: tuple[int, ...]) -> int:
        """Commit `tokens`."""
        same = _common(self._tokens[self._committed :], tokens)
        standing = self._committed + same
        self._committed_hash = self._committed_hash.extended(tokens)
        if same == len(tokens):
            standing = len(self._tokens)
        else:
            self._tokens[self._committed :] = tokens
            self._hash = self._committed_hash
            self._all_sent()
        self._committed += len(tokens)
        if not self.drafted:
            self.start = self._committed
        return standing


def _check(opened: Open) -> None:
    if not opened.tokens:
        raise Refused(Reason.MALFORMED, "a session needs at least one token")
    if opened.prompt_len > len(opened.tokens):
        raise Refused(Reason.MALFORMED, f"a prompt of {opened.prompt_len} in {len(opened.tokens)} tokens")
    if opened.mode is Mode.OFF:
        raise Refused(Reason.MALFORMED, "mode off drafts nothing")


def _common(left: Sequence[int], right: Sequence[int]) -> int:
    """Length of the common prefix."""
    for index, (one, other) in enumerate(zip(left, right, strict=False)):
        if one != other:
            return index
    return min(len(left), len(right))
