"""Writes docs/performance.md, benchmarks/RESULTS.md and its CSV tables from benchmarks/results: `make docs`."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.reports.pages import REPOSITORY, write

if __name__ == "__main__":
    write(sorted(file.stem for file in REPOSITORY.lines.glob("*.jsonl")))
    sys.stdout.write(f"{REPOSITORY.performance}\n{REPOSITORY.results}\n")
