"""API key file: one line per key, `tenant: sha256:HEX` and its limits. The gateway reloads the file when it changes."""

import asyncio
import hmac
import re
import stat
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import structlog

from gateway.callers.caller import ApiKey, PriorityClass
from gateway.config import KeyLimitSettings
from gateway.metrics import KeyMetrics
from specdec.errors import ConfigError, KeyRefused

LOOK = 1.0
"""Interval of checks for a change of the file, in seconds."""
_LINE = re.compile(r"(?P<tenant>[\w.-]{1,64}): +sha256:(?P<digest>[0-9a-fA-F]{64})(?P<options>( +\S+)*)")
_NUMBERS = ("requests", "tokens", "concurrency")
_MOST = 10**9
_BEARER = re.compile(r"Bearer +(\S+) *", re.IGNORECASE)
_BUCKET = 4
"""Length in bytes of the digest prefix used for lookup. Whole digests are compared in constant time."""

Known = Mapping[bytes, list[tuple[bytes, ApiKey]]]
"""Keys with their digests, by digest prefix."""

_log = structlog.get_logger()


class KeyFile:
    """API keys of one file. While the file is unreadable or invalid, the last valid keys stay in force."""

    def __init__(self, path: Path, limits: KeyLimitSettings, metrics: KeyMetrics) -> None:
        """Read the file for the first time; `limits` apply to keys that set none of their own.

        Raises:
            ConfigError: the file cannot be read or has an invalid line. The message has the line's number only.
        """
        self._path = path
        self._metrics = metrics
        self._defaults = ApiKey("", "", limits.requests, limits.tokens, limits.concurrency)
        self._content = read_file(path)
        self._known = self._load(self._content)
        self._mistake = ""

    def key_of(self, given: Iterable[str | bytes]) -> ApiKey:
        """Return the API key of a call.

        Args:
            given: values of the `authorization` header, or of the gRPC metadata of that name.

        Raises:
            KeyRefused: the call has no key, several keys, or an unknown key.
        """
        values = list(given)
        match = _BEARER.fullmatch(_text(values[0])) if len(values) == 1 else None
        if match is None:
            self._metrics.refused.inc()
            raise KeyRefused("send one API key, as in `Authorization: Bearer KEY`")
        digest, found = sha256(match[1].encode(errors="replace")).digest(), None
        for known, key in self._known.get(digest[:_BUCKET], ()):
            found = key if hmac.compare_digest(known, digest) else found
        if found is None:
            self._metrics.refused.inc()
            raise KeyRefused("the API key is not known")
        return found

    async def watch(self) -> None:
        """Reload the file whenever it changes, until cancelled."""
        while True:
            await asyncio.sleep(LOOK)
            self.look()

    def look(self) -> None:
        """Reload the file if it changed. An error is logged once and leaves the keys as they are."""
        mistake = ""
        try:
            content = read_file(self._path)
            if content != self._content or self._mistake:
                self._known = self._load(content)
                self._content = content
                _log.info("api_keys_read", keys=sum(map(len, self._known.values())))
        except ConfigError as error:
            mistake = error.message
            self._metrics.file_good.set(0)
        if mistake and mistake != self._mistake:
            _log.error("api_keys_not_read", error=mistake)
        self._mistake = mistake

    def _load(self, content: str) -> Known:
        parsed = parse(content, self._path, self._defaults)
        found: dict[bytes, list[tuple[bytes, ApiKey]]] = defaultdict(list)
        for digest, key in parsed.items():
            found[digest[:_BUCKET]].append((digest, key))
        self._metrics.file_good.set(1)
        self._metrics.keys.set(len(parsed))
        return found


def read_file(path: Path) -> str:
    """Return the content of the file; raises ConfigError if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"api_keys file {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"api_keys file {path} is not UTF-8") from error


def readable_by_all(path: Path) -> bool:
    """Whether every user of the machine may read the file."""
    return bool(path.stat().st_mode & stat.S_IROTH)


def parse(content: str, path: Path, defaults: ApiKey) -> dict[bytes, ApiKey]:
    """Return the keys of a file's content, by the SHA-256 of each key.

    Args:
        defaults: limits of keys that set none of their own.

    Raises:
        ConfigError: a line is invalid or repeated, or there is no key. The message never includes a line's content.
    """
    keys: dict[bytes, ApiKey] = {}
    for number, line in enumerate(content.splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        try:
            digest, key = _parse_line(line.strip(), defaults)
            if digest in keys:
                raise ValueError("this key is in an earlier line already")
        except ValueError as error:
            raise ConfigError(f"api_keys file {path}, line {number}: {error}") from error
        keys[digest] = key
    if not keys:
        raise ConfigError(f"api_keys file {path} has no key: every request would be refused")
    return keys


def _parse_line(line: str, defaults: ApiKey) -> tuple[bytes, ApiKey]:
    match = _LINE.fullmatch(line)
    if match is None:
        raise ValueError("it must be `tenant: sha256:HEX`, with the 64 digits of the key's SHA-256, and NAME=VALUE")
    digest = match["digest"].lower()
    options = dict(_parse_option(option) for option in match["options"].split())
    return bytes.fromhex(digest), replace(defaults, tenant=match["tenant"], id=digest[:32], **options)


def _parse_option(option: str) -> tuple[str, Any]:
    name, _, value = option.partition("=")
    if name in _NUMBERS:
        if not (value.isascii() and value.isdecimal() and 1 <= int(value) <= _MOST):
            raise ValueError(f"{name} must be a whole number from 1 to {_MOST}")
        return name, int(value)
    if name != "priority":
        raise ValueError(f"an option must be one of {', '.join(_NUMBERS)} and priority")
    if value not in set(PriorityClass):
        raise ValueError(f"priority must be one of {', '.join(PriorityClass)}")
    return name, PriorityClass(value)


def _text(value: str | bytes) -> str:
    return value if isinstance(value, str) else value.decode(errors="replace")
