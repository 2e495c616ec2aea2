"""A client for the master that Sentinels name; never for a replica, which may lack committed rounds."""

from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import Sentinel, SentinelConnectionPool

_SCHEMES = {"redis+sentinel": False, "rediss+sentinel": True}
_PORT = 26379
_MAX_CONNECTIONS = 1024
"""This pool refuses a connection over its limit instead of waiting for one, so its limit is higher."""


class _Pool(SentinelConnectionPool):
    """A pool that closes the connections to its Sentinels, too."""

    async def aclose(self) -> None:
        await super().aclose()
        await self.sentinel_manager.aclose()


def is_sentinel(url: str) -> bool:
    """Whether the scheme of a URL is one for Sentinels."""
    return urlsplit(url).scheme in _SCHEMES


def master(url: str, retry: Retry, **options: Any) -> Redis:
    """A client for `redis+sentinel://[user:password@]host[:port],.../service[/db]`.

    The query may contain `sentinel_username`, `sentinel_password` and the `ssl_...` options of redis-py.

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
    options |= _tls(parts.scheme, query)
    make: Any = Sentinel  # without types in redis-py
    sentinel = make([_address(host) for host in hosts.split(",")], sentinel_kwargs=options | _own(query))
    user, _, password = credentials.partition(":")
    login = {"username": unquote(user) or None, "password": unquote(password) or None}
    pool: Any = _Pool
    place = {"max_connections": _MAX_CONNECTIONS, "db": int(db or 0), "retry": retry}
    return Redis.from_pool(pool(service, sentinel, **place, **login, **options))


def _tls(scheme: str, query: dict[str, str]) -> dict[str, Any]:
    given: dict[str, Any] = {name: value for name, value in query.items() if name.startswith("ssl_")}
    if "ssl_check_hostname" in given:
        given["ssl_check_hostname"] = given["ssl_check_hostname"].lower() in ("1", "true", "yes")
    return given | {"ssl": True} if _SCHEMES[scheme] else {}


def _own(query: dict[str, str]) -> dict[str, Any]:
    """The login for the Sentinels, which have users of their own."""
    return {name: query.get(f"sentinel_{name}") for name in ("username", "password")}


def _address(host: str) -> tuple[str, int]:
    name, _, port = host.rpartition(":") if ":" in host.rpartition("]")[2] else (host, "", "")
    return name.strip("[]"), int(port or _PORT)
