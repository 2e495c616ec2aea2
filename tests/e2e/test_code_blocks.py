"""The code blocks of the pages run as printed, against a running system.

Blocks marked `bash` and `python` are run, those of one page in order and in one folder. The default addresses of
`specdec up` in them are replaced by those of the system. Blocks that need a cluster or other machines are not marked.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.system import ROOT, System, environment

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```(bash|python)\n(.*?)^```$", flags=re.MULTILINE | re.DOTALL)
SECONDS = 800


def blocks(page: Path) -> list[tuple[str, str]]:
    """Return the language and the text of each block to run."""
    return BLOCK.findall(page.read_text(encoding="utf-8"))


def script(page: Path, system: System) -> str:
    """Return the blocks of a page as one shell script, in which curl fails on a 4xx or 5xx response."""
    parts = ["set -euo pipefail", 'curl() { command curl --fail-with-body --silent --show-error "$@"; }']
    for language, text in blocks(page):
        parts.append(text if language == "bash" else f"python - <<'END_OF_BLOCK'\n{text}END_OF_BLOCK")
    default = {"127.0.0.1:8000": system.http.removeprefix("http://"), "127.0.0.1:50051": system.grpc}
    whole = "\n".join(parts)
    for printed, found in default.items():
        whole = whole.replace(printed, found)
    return whole


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page)], ids=lambda page: page.stem)
def test_the_blocks_of_a_page_run(page: Path, system: System, tmp_path: Path) -> None:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-c", script(page, system)],
        cwd=tmp_path,
        env=environment() | {"PATH": path, "SPECDEC_ADDRESS": system.grpc, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert done.stdout


def test_the_pages_have_blocks_to_run() -> None:
    assert {page.stem for page in PAGES if blocks(page)} >= {"README", "client", "sessions"}
    assert sum(len(blocks(page)) for page in PAGES) >= 8
