"""What a drafter's answers say beside their tokens: whether it has caught up, has a draft at all, or has no more."""

from specdec.wire.draft import DraftTokens

_CATCH_UP = 8
"""Tokens of earlier rounds that a drafter may have missed and is waited for. Sessions that want drafts again mostly do
so together, so that it reads for all of them before it drafts; plain passes go on meanwhile."""


class Answers:
    """The answers of one drafter for one session, from the time when the session was opened there."""

    def __init__(self) -> None:
        """Begin with a drafter that has not answered."""
        self.caught_up = False
        """Whether the drafter has read the session."""
        self.matching = True
        """Whether the drafter had a draft when it answered last."""
        self._ended: int | None = None
        """The prefix length for which no more drafts come."""
        self._drafted_to = 0
        """Where the draft that came since the last commit ended; 0 where none came."""

    @property
    def promise(self) -> bool:
        """Whether a draft is to be expected of the next answer."""
        return self.caught_up and self.matching

    def drafted(self, message: DraftTokens) -> None:
        """Note a draft, of whatever prefix."""
        self.caught_up = self.matching = True
        self._drafted_to = message.base_len + len(message.draft.tokens)

    def ended(self, length: int) -> None:
        """Note that no drafts come behind `length` tokens, committed and drafted."""
        self._ended, self.caught_up = length, True
        self.matching = self._drafted_to == length

    def committed(self, missed: int) -> None:
        """Note that the answers so far were made for fewer committed tokens.

        Args:
            missed: tokens of earlier rounds that the drafter has not been told; it reads them before it drafts.
        """
        self._drafted_to = 0
        self.caught_up = self.caught_up and missed <= _CATCH_UP

    def complete(self, committed: int, end: int) -> bool:
        """Whether no more drafts come behind `committed` tokens and their drafts, which reach up to `end`."""
        return self._ended is not None and committed <= self._ended <= end
