"""Writes docs/readme/peers.svg, the chart of the README, from benchmarks/results/peers.jsonl: `make docs`."""

import json
import sys
from html import escape
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "peers.jsonl"
CHART = ROOT / "docs" / "readme" / "peers.svg"

NAMES = {
    "vLLM plain": "vLLM",
    "vLLM ngram": "vLLM, n-gram drafts",
    "vLLM draft model": "vLLM, draft model",
    "vLLM suffix": "vLLM, suffix drafts",
    "HF assisted": "transformers, assisted",
    "HF prompt lookup": "transformers, prompt lookup",
    "ours, off": "specdec without drafts",
    "ours, auto": "specdec",
    "ours on vLLM, off": "specdec on vLLM without drafts",
    "ours on vLLM, auto": "specdec on vLLM",
}
CELL = ("demo", "0", "1")
"""Model, temperature and number of streams of the cell that is shown."""
ROW, LABEL, WIDTH, NUMBER = 24, 210, 700, 50


def newest() -> dict[str, Any]:
    """The last complete run of the benchmark."""
    runs = [json.loads(line) for line in RESULTS.read_text(encoding="utf-8").splitlines()]
    found: dict[str, Any] = [run for run in runs if not run["quick"]][-1]
    return found


def speeds(run: dict[str, Any]) -> dict[str, float]:
    """Tokens per second of every peer of the cell, the slowest first."""
    head, rows = run["tables"][0]["head"], run["tables"][0]["rows"]
    peer, speed = head.index("peer"), head.index("tokens/s")
    found = {NAMES[row[peer]]: float(row[speed]) for row in rows if tuple(row[:3]) == CELL}
    return dict(sorted(found.items(), key=lambda each: each[1]))


def chart() -> str:
    """The chart as SVG."""
    run = newest()
    bars = speeds(run)
    longest, height = max(bars.values()), ROW * len(bars) + 34
    under = f"tokens/s, one stream, temperature 0, demo pair · {run['date']}, {run['cores']} cores of {run['cpu']}"
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" font-family="sans-serif" '
        'font-size="13">',
        f"<title>{escape(under)}</title>",
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
    ]
    for index, (name, speed) in enumerate(bars.items()):
        top, width = 6 + ROW * index, (WIDTH - LABEL - NUMBER - 10) * speed / longest
        colour = "#1a7f37" if name.startswith("specdec") else "#8c959f"
        lines += [
            f'<text x="{LABEL - 8}" y="{top + 14}" text-anchor="end" fill="#1f2328">{escape(name)}</text>',
            f'<rect x="{LABEL}" y="{top + 2}" width="{width:.0f}" height="{ROW - 8}" fill="{colour}"/>',
            f'<text x="{LABEL + width + 6:.0f}" y="{top + 14}" fill="#1f2328">{speed:.0f}</text>',
        ]
    lines += [f'<text x="{LABEL}" y="{height - 10}" fill="#59636e" font-size="11">{escape(under)}</text>', "</svg>"]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    CHART.write_text(chart(), encoding="utf-8")
    sys.stdout.write(f"{CHART}\n")
