"""Take the screenshots of docs/page.md, from a system started for them: `make screenshots`."""

import sys
import tempfile
from pathlib import Path

from tests.e2e.page.chromium import missing, told
from tests.e2e.system import NO_DRAFT_IS_LATE, ROOT, running_system

FOLDER = ROOT / "docs" / "page"


def main() -> int:
    """Take all screenshots. Return 1 if there is no browser."""
    if reason := missing():
        sys.stderr.write(f"{reason}\n")
        return 1
    FOLDER.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as name, running_system(Path(name), **NO_DRAFT_IS_LATE) as system:
        told(Path(name), "screenshots.mjs", system.http, str(FOLDER))
    return 0


if __name__ == "__main__":
    sys.exit(main())
