"""Opens connections to Redis with timeouts and retries, and reads facts about the server."""

import asyncio
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import Sentinel, SentinelConnectionPool
from redis.backoff import ExponentialWithJitterBackoff
from redis.exceptions import RedisError

from specdec.errors import ConfigError, SessionStoreDown

SOCKET_TIMEOUT = 1.0
"""Timeout in seconds of a connection attempt and of each reply. An operation is one script of microseconds."""
MAX_CONNECTIONS = 64
POOL_TIMEOUT = 10.0
"""Longest wait in seconds for a free connection, reached only if the server does not answer."""
HEALTH_CHECK_INTERVAL = 15.0
"""Idle time in seconds after which a connection is pinged before reuse."""
RETRIES = 5
FACTS_TIMEOUT = 5.0
"""Timeout of reading a server's facts, in seconds."""
_SENTINEL_SCHEMES = {"redis+sentinel": False, "rediss+sentinel": True}
"""URL schemes of Sentinels, and whether each implies TLS."""
_SENTINEL_PORT = 26379
SCHEMES = "redis://, rediss://, unix://, redis+sentinel:// or rediss+sentinel://"


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """Facts that decide whether a server can hold sessions or KV blocks."""

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
    """Memory limit in bytes; 0 is no limit."""
    replicas: int = 0
    """Number of connected replicas."""
    is_master: bool = True
    fsync: str = ""
    """Setting appendfsync: `always`, `everysec` or `no`; empty if the user may not read it."""
    log_is_written: bool = True
    """Whether the last write to the append-only file succeeded."""
    run_id: str = ""
    """Unique id of the server process."""
    is_cluster: bool = False
    """Whether it is a node of a Redis Cluster, which has only some of the keys."""


def connect(url: str, blocking: float = 0.0) -> Redis:
    """Return a client for a Redis URL; it connects on first use and closes with `aclose()`.

    A command whose reply is lost is sent again, so every command on this client must be safe to repeat.

    Args:
        url: URL with one of SCHEMES. Each connection looks up the master of a Sentinel again.
        blocking: longest time in seconds that a command may block on the server, added to the reply timeout.

    Raises:
        ConfigError: the URL is invalid. The message does not repeat it, because it may contain a password.
    """
    options = {
        "socket_timeout": SOCKET_TIMEOUT + blocking,
        "socket_connect_timeout": SOCKET_TIMEOUT,
        "health_check_interval": HEALTH_CHECK_INTERVAL,
        "client_name": "specdec-gateway",
    }
    try:
        if urlsplit(url).scheme in _SENTINEL_SCHEMES:
            return _master(url, options)
        return Redis.from_pool(_pool(url, options))
    except (TypeError, ValueError) as error:
        raise ConfigError(f"the Redis URL must begin with {SCHEMES} and be well formed") from error


def _pool(url: str, options: dict[str, Any]) -> Any:
    pool: Any = BlockingConnectionPool.from_url(url, **_limits(), **options)
    pool.make_connection()  # does not connect yet, and refuses options that this kind of connection does not have
    return pool


def _limits() -> dict[str, Any]:
    retry = Retry(ExponentialWithJitterBackoff(cap=1.0, base=0.02), RETRIES)
    return {"max_connections": MAX_CONNECTIONS, "timeout": POOL_TIMEOUT, "retry": retry}


class _SentinelPool(SentinelConnectionPool, BlockingConnectionPool):
    """Blocking connection pool to a master that also closes the connections to its Sentinels."""

    async def aclose(self) -> None:
        await super().aclose()
        await self.sentinel_manager.aclose()


def _master(url: str, options: dict[str, Any]) -> Redis:
    """Return a client for the master that the Sentinels name; never a replica, which may lack committed rounds.

    The URL is `redis+sentinel://[user:password@]host[:port],.../service[/db]`. The query may contain
    `sentinel_username`, `sentinel_password` and the `ssl_...` options of redis-py.

    Raises:
        ValueError: the URL does not have this form.
    """
    parts = urlsplit(url)
    credentials, _, hosts = parts.netloc.rpartition("@")
    service, _, db = parts.path.strip("/").partition("/")
    if not service or not hosts:
        raise ValueError("a Sentinel URL names hosts and a service")
    query = dict(parse_qsl(parts.query))
    if not all(name.startswith(("sentinel_", "ssl_")) for name in query):
        raise ValueError("an option is not known")
    options = options | _tls(parts.scheme, query)
    own = {name: query.get(f"sentinel_{name}") for name in ("username", "password")}  # Sentinels have other users
    make: Any = Sentinel  # without types in redis-py
    sentinel = make([_address(host) for host in hosts.split(",")], sentinel_kwargs=options | own)
    user, _, password = credentials.partition(":")
    login = {"username": unquote(user) or None, "password": unquote(password) or None}
    pool: Any = _SentinelPool
    return Redis.from_pool(pool(service, sentinel, db=int(db or 0), **_limits(), **login, **options))


def _tls(scheme: str, query: dict[str, str]) -> dict[str, Any]:
    given: dict[str, Any] = {name: value for name, value in query.items() if name.startswith("ssl_")}
    if "ssl_check_hostname" in given:
        given["ssl_check_hostname"] = given["ssl_check_hostname"].lower() in ("1", "true", "yes")
    return given | {"ssl": True} if _SENTINEL_SCHEMES[scheme] else {}


def _address(host: str) -> tuple[str, int]:
    name, _, port = host.rpartition(":") if ":" in host.rpartition("]")[2] else (host, "", "")
    return name.strip("[]"), int(port or _SENTINEL_PORT)


async def server_facts(url: str) -> ServerFacts:
    """Read INFO and the appendfsync setting of the server at a Redis URL.

    Raises:
        ConfigError: the URL is invalid.
        SessionStoreDown: the server does not answer.
    """
    client = connect(url)
    try:
        async with asyncio.timeout(FACTS_TIMEOUT):
            return await _server_facts(client)
    except (RedisError, OSError) as error:  # a timeout is an OSError
        raise SessionStoreDown(f"the server does not answer: {error}") from error
    finally:
        await client.aclose()


async def _server_facts(client: Redis) -> ServerFacts:
    info = await client.info()
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
