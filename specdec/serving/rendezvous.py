"""Rendezvous hashing (Thaler and Ravishankar, 1998): when a member comes or goes, only its own keys move."""

import hashlib
from collections.abc import Iterable


def ranking(key: str, members: Iterable[str]) -> list[str]:
    """Return the members by descending hash with `key`. The first owns the key; the next one is its fallback."""
    return sorted(members, key=lambda member: _weight(key, member), reverse=True)


def _weight(key: str, member: str) -> bytes:
    return hashlib.blake2b(f"{key}\0{member}".encode(), digest_size=8).digest()
