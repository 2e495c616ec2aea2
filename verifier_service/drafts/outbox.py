"""Queue of messages to one drafter, with at most one message of each kind for each session."""

import asyncio
from dataclasses import dataclass, replace

from specdec.wire.session import Close, Commit, Open


@dataclass(frozen=True, slots=True)
class Frame:
    """Content of one message. The drafter processes opens, then commits, then closes."""

    opens: tuple[Open, ...] = ()
    commits: tuple[Commit, ...] = ()
    closes: tuple[Close, ...] = ()
    ping: int | None = None
    """Nonce of a ping."""


class Outbox:
    """Merges the messages of one event-loop iteration, or those queued while the writer was blocked, into one frame."""

    def __init__(self) -> None:
        self._opens: dict[str, Open] = {}
        self._commits: dict[str, Commit] = {}
        self._closes: dict[str, Close] = {}
        self._ping: int | None = None
        self._filled = asyncio.Event()

    def open(self, message: Open) -> None:
        """Queue an open, which replaces all queued messages of its session."""
        self._commits.pop(message.session_id, None)
        self._closes.pop(message.session_id, None)
        self._opens[message.session_id] = message
        self._filled.set()

    def commit(self, message: Commit) -> None:
        """Queue a commit, merged with the queued commit that it continues."""
        earlier = self._commits.get(message.session_id)
        if earlier is not None:
            message = replace(message, base_len=earlier.base_len, tokens=earlier.tokens + message.tokens)
        self._commits[message.session_id] = message
        self._filled.set()

    def close(self, message: Close) -> None:
        """Queue a close, which replaces all queued messages of its session."""
        self._opens.pop(message.session_id, None)
        self._commits.pop(message.session_id, None)
        self._closes[message.session_id] = message
        self._filled.set()

    def ping(self, nonce: int) -> None:
        """Queue a ping, which replaces a queued one."""
        self._ping = nonce
        self._filled.set()

    async def take(self) -> Frame:
        """Wait for a message, and return all queued messages as one frame."""
        await self._filled.wait()
        opens, commits, closes = self._opens.values(), self._commits.values(), self._closes.values()
        frame = Frame(tuple(opens), tuple(commits), tuple(closes), self._ping)
        self._opens, self._commits, self._closes, self._ping = {}, {}, {}, None
        self._filled.clear()
        return frame
