"""`python -m tests.soak`: load a system for minutes, and fail when the memory of a process grows or keys stay."""

import argparse
import json
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from tests.soak.soak import Plan, Soaked, soak


def main(write: Callable[[str], object] = sys.stdout.write) -> int:
    """Soak and report. Return 1 if anything was wrong."""
    options = _options()
    warm = options.minutes / 3 if options.warm is None else options.warm
    plan = Plan(options.minutes * 60, warm * 60, options.every, options.rate, options.seed, options.bound)
    folder = Path(tempfile.mkdtemp(prefix="specdec-soak-"))
    write(f"{options.minutes:g} minutes, of which {warm:g} to warm up; logs in {folder}\n")
    found = soak(plan, folder)
    for line in _lines(found):
        write(line + "\n")
    if options.json:
        options.json.write_text(json.dumps(found.as_json(), indent=2) + "\n")
    if not found.faults:
        shutil.rmtree(folder)
    return int(bool(found.faults))


def _lines(found: Soaked) -> list[str]:
    sizes = [f"{each.name}: {each.slope(found.plan.warm):+.2f} MiB a minute" for each in found.memories]
    keys = f"{found.keys} keys at the end, {found.left} when they have expired"
    return [f"answers {dict(found.answers)}", *sizes, keys, *(f"WRONG: {fault}" for fault in found.faults)]


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30.0, help="how long the load lasts")
    parser.add_argument("--warm", type=float, help="minutes that do not count; a third of the time when left out")
    parser.add_argument("--every", type=float, default=10.0, help="seconds between two samples of memory")
    parser.add_argument("--rate", type=float, default=2.0, help="requests a second")
    parser.add_argument("--bound", type=float, default=1.0, help="MiB a minute by which a process may grow")
    parser.add_argument("--seed", type=int, default=1, help="of the requests")
    parser.add_argument("--json", type=Path, help="where to write the report")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
