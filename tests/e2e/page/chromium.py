"""Run the scripts of this folder with the Chromium that `make browser` downloads."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

HERE = Path(__file__).parent
FETCHED = HERE.parents[2] / "build" / "browser"
SECONDS = 480


def missing() -> str:
    """Return why no browser is available here, or "" if one starts."""
    if shutil.which("node") is None:
        return "there is no node here"
    if not (FETCHED / "chromium").is_file():
        return "`make browser` fetches a Chromium, and needs npm"
    found = subprocess.run([FETCHED / "chromium", "--version"], capture_output=True, text=True, timeout=60)
    return "" if found.returncode == 0 else f"Chromium does not start here: {found.stderr.strip()}"


@contextmanager
def started(folder: Path, script: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Run a script until the context ends. Scripts find their packages in `folder`."""
    for module in HERE.glob("*.mjs"):
        shutil.copy(module, folder)
    if not (folder / "node_modules").exists():
        (folder / "node_modules").symlink_to(FETCHED / "node_modules")
    process = subprocess.Popen(
        ["node", str(folder / script), *arguments],
        env=os.environ | {"TMPDIR": str(FETCHED), "NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def told(folder: Path, script: str, *arguments: str) -> str:
    """Return everything that a script prints."""
    with started(folder, script, *arguments) as process:
        out, error = process.communicate(timeout=SECONDS)
        assert process.returncode == 0, error
        return out
