"""Files of API keys for tests."""

import hashlib
from pathlib import Path


def line(key: str, tenant: str, options: str = "") -> str:
    """Return the line of a key."""
    return f"{tenant}: sha256:{hashlib.sha256(key.encode()).hexdigest()} {options}".rstrip()


def write(folder: Path, *lines: str) -> Path:
    """Write a file of these lines, replacing the previous one."""
    path = folder / "keys"
    path.write_text("\n".join(lines))
    return path


def bearer(key: str) -> dict[str, str]:
    """Return the header that carries a key."""
    return {"authorization": f"Bearer {key}"}
