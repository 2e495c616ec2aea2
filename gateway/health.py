"""Readiness: whether the gateway can serve a request now, and what is missing otherwise."""

import asyncio

from gateway.turns.services import Services
from specdec.errors import SessionStoreFull, SessionStoreReadOnly, SpecdecError

STORE_TIMEOUT = 0.5
"""Timeout of the session store check, in seconds."""


async def missing(services: Services) -> list[str]:
    """Return one line per missing dependency; empty if the gateway is ready."""
    found = []
    if services.drain.closing:
        found.append("the gateway is shutting down")
    if not services.models.ready:
        states = [f"verifier {address} is {state}" for address, state in services.models.states.items()]
        found += states or ["no verifier is known"]
    try:
        async with asyncio.timeout(STORE_TIMEOUT):
            await services.sessions.check()
    except (SessionStoreFull, SessionStoreReadOnly) as error:
        found.append(error.message)
    except (SpecdecError, TimeoutError):
        services.metrics.store_up.set(0)
        return [*found, "the session store does not answer"]
    services.metrics.store_up.set(1)
    return found
