"""Files of API keys for tests."""

import hashlib
from pathlib import Path


def line(key: str, tenant: str, options: str = "") -> str:
    """The line of a key."""
    return f"{tenant}: sha256:{hashlib.sha256(key.encode()).hexdigest()} {options}".rstrip()


def write(folder: Path, *lines: str) -> Path:
    """A file of those lines, in place of the one that was there."""
    path = folder / "keys"
    path.write_text("\n".join(lines))
    return path


def bearer(key: str) -> dict[str, str]:
    """The header that sends a key."""
    return {"authorization": f"Bearer {key}"}
