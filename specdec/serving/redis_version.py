"""Which versions of Redis and Valkey are safe to use; the gateway and `specdec up` ask for the same."""

SAFE = (6, 2, 20)
"""The oldest safe version; a caller can make older servers run code through Lua (CVE-2025-49844)."""


def version_parts(version: str) -> tuple[int, ...]:
    """The numbers of a version such as `6.2.20`; what is not a number is left out."""
    return tuple(int(part) for part in version.split(".")[:3] if part.isdecimal())
