"""The in-memory session store of the gateway's unit tests meets the contract of the real one."""

import pytest

from tests.contracts.session_store import MAX_TOKENS, Backend, SessionContract
from tests.contracts.turn_ownership import OwnershipContract
from tests.support.memory_sessions import MemorySessionStore


class TestMemorySessionStore(SessionContract, OwnershipContract):
    """The contract over memory."""

    @pytest.fixture
    def backend(self) -> Backend:
        store = MemorySessionStore(max_tokens=MAX_TOKENS)

        async def expire_lease(session_id: str) -> None:
            store.sessions[session_id].lease_ends = 0.0

        async def lose_tokens(session_id: str) -> None:
            store.sessions[session_id].expired = True

        return Backend(store, expire_lease, lose_tokens)
