"""The two stores of `specdec up`, for sessions and for keys and values: each is an existing server, or is started."""

from dataclasses import dataclass
from pathlib import Path

from specdec.cli.local import launch, valkey
from specdec.cli.local.valkey import Binary, Embedded
from specdec.cli.settings import UpSettings
from specdec.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Chosen:
    """Choice of the stores to start."""

    binary: Binary | None
    """Server program of the stores to start; None starts no store."""
    starts_kv: bool
    lacking: str = ""
    """Reason why a wanted KV store cannot be started; empty otherwise."""


@dataclass(frozen=True, slots=True)
class Stores:
    """The URLs for the gateways, and the servers to start."""

    sessions: str
    kv: str
    """Empty for no KV store."""
    embedded: tuple[Embedded, ...]


def choose(settings: UpSettings) -> Chosen:
    """Choose the stores to start.

    Raises:
        ConfigError: settings contradict each other, a URL is malformed, or no server program is available.
        Unreachable: a given store does not answer.
    """
    _check_contradictions(settings)
    if settings.redis_url:
        launch.check_given_store(settings.redis_url)
    if settings.kv_redis_url:
        launch.check_given_store(settings.kv_redis_url, "--kv-redis-url")
    starts_kv = settings.kv and not settings.kv_redis_url
    if settings.redis_url and not starts_kv:
        return Chosen(None, starts_kv)
    try:
        return Chosen(valkey.resolve(), starts_kv)
    except ConfigError as error:
        if not settings.redis_url:
            raise
        return Chosen(None, starts_kv=False, lacking=error.message)


def configure(chosen: Chosen, settings: UpSettings, runtime: Path) -> Stores:
    """Write the configuration of the stores to start to the folder `runtime`, which must be private."""
    sessions, kv = settings.redis_url, settings.kv_redis_url
    embedded: list[Embedded] = []
    if chosen.binary and not sessions:
        embedded.append(valkey.embed(chosen.binary, runtime, settings.data and settings.data.resolve()))
        sessions = embedded[-1].url
    if chosen.binary and chosen.starts_kv:
        embedded.append(valkey.embed_kv(chosen.binary, runtime, settings.kv_memory))
        kv = embedded[-1].url
    return Stores(sessions, kv, tuple(embedded))


def _check_contradictions(settings: UpSettings) -> None:
    if settings.redis_url and settings.data:
        raise ConfigError("--data is for a session store that is started: leave it, or --redis-url and REDIS_URL, out")
    if settings.kv_redis_url and not settings.kv:
        raise ConfigError("--no-kv and --kv-redis-url contradict each other")
