"""How the gateway dials Redis: bounded, retried, checked; nothing here knows what is stored."""

from dataclasses import dataclass
from typing import Any

from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import ExponentialWithJitterBackoff
from redis.exceptions import RedisError

from gateway.store import redis_sentinel
from specdec.errors import ConfigError, SessionStoreDown

SOCKET_TIMEOUT = 1.0
"""Seconds; every operation is one script of microseconds."""
MAX_CONNECTIONS = 64
POOL_TIMEOUT = 1.0
"""Seconds to wait for a free connection."""
HEALTH_CHECK_INTERVAL = 15.0
"""Seconds a connection may idle before it is pinged ahead of use."""
RETRIES = 5
SCHEMES = "redis://, rediss://, unix://, redis+sentinel:// or rediss+sentinel://"


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """What tells whether a server is fit for what it is to hold."""

    name: str
    """`valkey` or `redis`."""
    version: str
    maxmemory_policy: str
    """`noeviction` is right for sessions: anything else may drop tokens that were shown."""
    append_only: bool
    """Whether the log survives the server process."""
    used: int = 0
    """Bytes of memory in use."""
    maxmemory: int = 0
    """Bytes it may use; 0 is no limit."""
    replicas: int = 0
    """Replicas connected now."""
    is_master: bool = True
    fsync: str = ""
    """`always`, `everysec` or `no`; empty where the user may not ask."""
    log_is_written: bool = True
    """Whether the last write of the log reached the file."""
    run_id: str = ""
    """Tells this server from every other."""


def connect(url: str, blocking: float = 0.0) -> Redis:
    """A client for a Redis URL; it connects on first use and closes with `aclose()`.

    A command whose reply was lost is sent again: only commands that may run twice belong on this client.

    Args:
        url: of a scheme in SCHEMES; a Sentinel's master is looked up anew for each connection.
        blocking: seconds a command may block on the server, beyond the time an answer may take.

    Raises:
        ConfigError: not such a URL; the message does not repeat it, for it may hold a password.
    """
    options = {
        "socket_timeout": SOCKET_TIMEOUT + blocking,
        "socket_connect_timeout": SOCKET_TIMEOUT,
        "health_check_interval": HEALTH_CHECK_INTERVAL,
        "client_name": "specdec-gateway",
    }
    try:
        if redis_sentinel.is_sentinel(url):
            return redis_sentinel.master(url, retry=_retry(), **options)
        return Redis.from_pool(_pool(url, options))
    except (TypeError, ValueError) as error:
        raise ConfigError(f"the Redis URL must begin with {SCHEMES} and be well formed") from error


def _pool(url: str, options: dict[str, Any]) -> Any:
    pool: Any = BlockingConnectionPool.from_url(
        url, max_connections=MAX_CONNECTIONS, timeout=POOL_TIMEOUT, retry=_retry(), **options
    )
    pool.make_connection()  # dials nobody, and refuses options that the kind of connection does not have
    return pool


def _retry() -> Retry:
    return Retry(ExponentialWithJitterBackoff(cap=1.0, base=0.02), RETRIES)


async def server_facts(client: Redis) -> ServerFacts:
    """Ask the server what it is and how it keeps what it is given.

    Raises:
        SessionStoreDown: it does not answer.
    """
    try:
        info = await client.info()
    except (RedisError, OSError) as error:
        raise SessionStoreDown(f"the server does not answer: {error}") from error
    return ServerFacts(
        name=str(info.get("server_name", "redis")),
        version=str(info.get("valkey_version") or info["redis_version"]),
        maxmemory_policy=str(info["maxmemory_policy"]),
        append_only=bool(info["aof_enabled"]),
        used=int(info["used_memory"]),
        maxmemory=int(info["maxmemory"]),
        replicas=int(info["connected_slaves"]),
        is_master=info["role"] == "master",
        fsync=await _fsync(client),
        log_is_written=info.get("aof_last_write_status", "ok") == "ok",
        run_id=str(info["run_id"]),
    )


async def _fsync(client: Redis) -> str:
    try:
        found: Any = await client.config_get("appendfsync")
    except (RedisError, OSError):
        return ""
    return str(found.get("appendfsync", ""))
