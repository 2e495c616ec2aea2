"""How the gateway dials Redis: bounded, retried, checked; nothing here knows what is stored."""

from dataclasses import dataclass

from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import ExponentialWithJitterBackoff
from redis.exceptions import RedisError

from specdec.errors import ConfigError, SessionStoreDown

SOCKET_TIMEOUT = 1.0
"""Seconds; every operation is one script of microseconds."""
MAX_CONNECTIONS = 64
POOL_TIMEOUT = 1.0
"""Seconds to wait for a free connection."""
HEALTH_CHECK_INTERVAL = 15.0
"""Seconds a connection may idle before it is pinged ahead of use."""
RETRIES = 5


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """What a session store must be told about its server."""

    name: str
    """`valkey` or `redis`."""
    version: str
    maxmemory_policy: str
    """`noeviction` is right for sessions: anything else may drop tokens that were shown."""
    append_only: bool
    """Whether the log survives the server process."""


def connect(url: str) -> Redis:
    """A client for `redis://`, `rediss://` or `unix://`; it connects on first use and closes with `aclose()`.

    A command whose reply was lost is sent again: only commands that may run twice belong on this client.

    Raises:
        ConfigError: not such a URL; the message does not repeat it, for it may hold a password.
    """
    try:
        pool: BlockingConnectionPool = BlockingConnectionPool.from_url(
            url,
            max_connections=MAX_CONNECTIONS,
            timeout=POOL_TIMEOUT,
            socket_timeout=SOCKET_TIMEOUT,
            socket_connect_timeout=SOCKET_TIMEOUT,
            retry=Retry(ExponentialWithJitterBackoff(cap=1.0, base=0.02), RETRIES),
            health_check_interval=HEALTH_CHECK_INTERVAL,
            client_name="specdec-gateway",
        )
    except ValueError as error:
        raise ConfigError("the Redis URL must begin with redis://, rediss:// or unix:// and be well formed") from error
    return Redis.from_pool(pool)


async def server_facts(client: Redis) -> ServerFacts:
    """Ask the server what it is and how it keeps what it is given.

    Raises:
        SessionStoreDown: it does not answer.
    """
    try:
        info = await client.info()
    except (RedisError, OSError) as error:
        raise SessionStoreDown(f"the session store does not answer: {error}") from error
    return ServerFacts(
        name=str(info.get("server_name", "redis")),
        version=str(info.get("valkey_version") or info["redis_version"]),
        maxmemory_policy=str(info["maxmemory_policy"]),
        append_only=bool(info["aof_enabled"]),
    )
