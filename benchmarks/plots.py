"""The curves of the newest results, as pictures for the documentation."""

import json
from pathlib import Path

from benchmarks.results import FOLDER


def draw(out: Path, folder: Path = FOLDER) -> list[Path]:
    """One PNG for every section that has curves; needs the extra `bench`."""
    from matplotlib.figure import Figure

    written = list[Path]()
    out.mkdir(parents=True, exist_ok=True)
    for file in sorted(folder.glob("*.jsonl")):
        curves = json.loads(file.read_text(encoding="utf-8").splitlines()[-1])["curves"]
        if not curves:
            continue
        figure = Figure(figsize=(6, 4), layout="constrained")
        axes = figure.subplots()
        for name, points in sorted(curves.items()):
            axes.plot([x for x, _ in points], [y for _, y in points], marker="o", label=name)
        axes.set_title(file.stem)
        axes.grid(visible=True, alpha=0.3)
        axes.legend()
        written.append(out / f"{file.stem}.png")
        figure.savefig(written[-1], dpi=120)
    return written
