"""Plots of the curves of results, for the documentation."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from benchmarks.reports.results import Line


def draw(newest: Iterable[Line], out: Path) -> None:
    """Draw one PNG for every chart. Needs the extra `bench`."""
    charts = [chart for line in newest for chart in line["charts"]]
    if charts:
        out.mkdir(parents=True, exist_ok=True)
    for chart in charts:
        _picture(chart, out / f"{chart['name']}.png")


def _picture(chart: dict[str, Any], file: Path) -> None:
    """Draw a chart. A predicted curve is dashed and has the color of the measured one."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.subplots()
    colours = dict[str, str]()
    for name, points in chart["curves"].items():
        what = name.removesuffix(", predicted")
        colour = colours.setdefault(what, f"C{len(colours)}")
        style = "--" if what != name else "-"
        axes.plot([x for x, _ in points], [y for _, y in points], style, color=colour, marker="o", label=name)
    axes.set_xlabel(chart["x"])
    axes.set_ylabel(chart["y"])
    axes.set_ylim(bottom=0.0)
    axes.grid(visible=True, alpha=0.3)
    axes.legend()
    figure.savefig(file, dpi=120)
