"""Safe versions of Redis and Valkey, for the checks of the gateway and `specdec up`."""

SAFE = (6, 2, 20)
"""Oldest safe version. On older servers, a caller can run code through Lua (CVE-2025-49844)."""


def version_parts(version: str) -> tuple[int, ...]:
    """Return the numbers of a version such as `6.2.20`, without non-numeric parts."""
    return tuple(int(part) for part in version.split(".")[:3] if part.isdecimal())
