"""Opens connections to Redis with timeouts and retries, and reads what kind of server is there."""

from dataclasses import dataclass
from typing import Any

from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import ExponentialWithJitterBackoff
from redis.exceptions import RedisError

from gateway.store import redis_sentinel
from specdec.errors import ConfigError, SessionStoreDown

SOCKET_TIMEOUT = 1.0
"""Seconds for connecting and for each reply; every operation is one script of microseconds."""
MAX_CONNECTIONS = 64
POOL_TIMEOUT = 1.0
"""Seconds to wait for a free connection."""
HEALTH_CHECK_INTERVAL = 15.0
"""Seconds after which an idle connection is pinged before it is used again."""
RETRIES = 5
SCHEMES = "redis://, rediss://, unix://, redis+sentinel:// or rediss+sentinel://"


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """What decides whether a server is fit for what it will hold."""

    name: str
    """`valkey` or `redis`."""
    version: str
    maxmemory_policy: str
    """Sessions need `noeviction`: every other policy may drop tokens that were shown."""
    append_only: bool
    """Whether writes go to an append-only file, which survives the server process."""
    used: int = 0
    """Bytes of memory in use."""
    maxmemory: int = 0
    """Bytes it may use; 0 is no limit."""
    replicas: int = 0
    """The number of replicas that are connected now."""
    is_master: bool = True
    fsync: str = ""
    """The setting appendfsync: `always`, `everysec` or `no`; empty when the user may not read it."""
    log_is_written: bool = True
    """Whether the last write to the append-only file succeeded."""
    run_id: str = ""
    """An id that is different for every server process."""
    is_cluster: bool = False
    """Whether it is a node of a Redis Cluster, which has only some of the keys."""


def connect(url: str, blocking: float = 0.0) -> Redis:
    """A client for a Redis URL; it connects on first use and closes with `aclose()`.

    A command whose reply was lost is sent again, so every command on this client must be safe to repeat.

    Args:
        url: a URL with one of SCHEMES; the master of a Sentinel is looked up anew for each connection.
        blocking: seconds for which a command may block on the server, in addition to the timeout of a reply.

    Raises:
        ConfigError: it is no such URL; the message does not repeat it, because it may contain a password.
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
    pool.make_connection()  # does not connect yet, and refuses options that this kind of connection does not have
    return pool


def _retry() -> Retry:
    return Retry(ExponentialWithJitterBackoff(cap=1.0, base=0.02), RETRIES)


async def server_facts(client: Redis) -> ServerFacts:
    """Read the server's INFO and its appendfsync setting.

    Raises:
        SessionStoreDown: the server does not answer.
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
        is_cluster=bool(info.get("cluster_enabled")),
    )


async def _fsync(client: Redis) -> str:
    try:
        found: Any = await client.config_get("appendfsync")
    except (RedisError, OSError):
        return ""
    return str(found.get("appendfsync", ""))
