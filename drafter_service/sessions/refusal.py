"""Refusal of messages that cannot be served."""

from specdec.rules.speculation import Mode
from specdec.wire.session import NackReason, Open


class SessionRefused(Exception):
    """A message cannot be served. Its session is answered with a Nack; no other session is affected."""

    def __init__(self, reason: NackReason, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason
        self.detail = detail


def check_open(opened: Open) -> None:
    """Refuse an invalid session.

    Raises:
        SessionRefused: always with the reason MALFORMED.
    """
    if not opened.tokens:
        raise SessionRefused(NackReason.MALFORMED, "a session needs at least one token")
    if opened.prompt_len > len(opened.tokens):
        raise SessionRefused(NackReason.MALFORMED, f"a prompt of {opened.prompt_len} in {len(opened.tokens)} tokens")
    if opened.mode is Mode.OFF:
        raise SessionRefused(NackReason.MALFORMED, "mode off drafts nothing")
