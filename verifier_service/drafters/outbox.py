"""What waits to be sent to one drafter: per session at most one message of each kind, in an order it understands."""

import asyncio
from dataclasses import dataclass, replace

from specdec.wire.session import Close, Commit, Open


@dataclass(frozen=True, slots=True)
class Frame:
    """One message's worth; the reader handles opens, then commits, then closes."""

    opens: tuple[Open, ...] = ()
    commits: tuple[Commit, ...] = ()
    closes: tuple[Close, ...] = ()
    ping: int | None = None


class Outbox:
    """Everything put in during one turn of the loop, or while the writer was blocked, leaves in one frame."""

    def __init__(self) -> None:
        self._opens: dict[str, Open] = {}
        self._commits: dict[str, Commit] = {}
        self._closes: dict[str, Close] = {}
        self._ping: int | None = None
        self._filled = asyncio.Event()

    def open(self, message: Open) -> None:
        """An open supersedes whatever waits for its session."""
        self._commits.pop(message.session_id, None)
        self._closes.pop(message.session_id, None)
        self._opens[message.session_id] = message
        self._filled.set()

    def commit(self, message: Commit) -> None:
        """A commit joins the one that waits, which it continues."""
        earlier = self._commits.get(message.session_id)
        if earlier is not None:
            message = replace(message, base_len=earlier.base_len, tokens=earlier.tokens + message.tokens)
        self._commits[message.session_id] = message
        self._filled.set()

    def close(self, message: Close) -> None:
        """A close makes what waits for its session pointless."""
        self._opens.pop(message.session_id, None)
        self._commits.pop(message.session_id, None)
        self._closes[message.session_id] = message
        self._filled.set()

    def ping(self, nonce: int) -> None:
        """The latest ping is the one that is sent."""
        self._ping = nonce
        self._filled.set()

    async def take(self) -> Frame:
        """Wait until there is something, and empty the box."""
        await self._filled.wait()
        opens, commits, closes = self._opens.values(), self._commits.values(), self._closes.values()
        frame = Frame(tuple(opens), tuple(commits), tuple(closes), self._ping)
        self._opens, self._commits, self._closes, self._ping = {}, {}, {}, None
        self._filled.clear()
        return frame
