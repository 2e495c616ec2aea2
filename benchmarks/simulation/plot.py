"""Plots of the scenarios' results."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl

from benchmarks.simulation.regions import DRAFTS, LOADS
from benchmarks.simulation.scenarios import Moment, Point

mpl.use("Agg")

import matplotlib.pyplot as plt


def draw(
    path: Path,
    knees: Mapping[str, Sequence[Point]],
    bent: Mapping[str, Sequence[Point]],
    stories: Mapping[str, Sequence[Moment]],
    ratio: float,
) -> None:
    """Draw four panels: the knee, the limits of the closed form, lost nodes, and scaling."""
    figure, panels = plt.subplots(2, 2, figsize=(12, 8), layout="constrained")
    _knee(panels[0][0], knees, ratio)
    _bent(panels[0][1], bent)
    _story(
        panels[1][0], stories["losses"], "A drafter is lost at 15 s (back at 25 s), a verifier at 35 s (back at 45 s)"
    )
    _story(panels[1][1], stories["scaling"], "Sessions ×2, ×2, then fewer: the controller's policy")
    figure.savefig(path, dpi=80)
    plt.close(figure)


def draw_regions(path: Path, cheap: Sequence[Sequence[float]], others: Mapping[str, Sequence[Sequence[float]]]) -> None:
    """Draw both regions for cheap drafters, and the boundary between them for expensive ones."""
    figure, panel = plt.subplots(figsize=(7, 5), layout="constrained")
    panel.contourf(LOADS, DRAFTS, cheap, levels=[0.0, 1.0, float("inf")], colors=["#f4c7a1", "#b5d3ec"])
    panel.text(0.35, 1.0, "in turns on one\naccelerator wins", fontsize=9)
    panel.text(2.4, 1.0, "apart wins", fontsize=9)
    lines = panel.contour(LOADS, DRAFTS, cheap, levels=[1.1, 1.25, 1.5, 2.0], colors="tab:blue", linewidths=0.7)
    panel.clabel(lines, fontsize=8)
    for number, (name, ratios) in enumerate(others.items()):
        panel.contour(LOADS, DRAFTS, ratios, levels=[1.0], colors=f"C{number + 1}", linestyles="--")
        panel.plot([], [], f"C{number + 1}--", label=name)
    panel.set(xlabel="sessions on a verifier, over those that a pass has room for", ylabel="γ·t_d/t_v")
    panel.set_title("A client's speed for the same money: apart over in turns")
    panel.legend(fontsize=8, loc="upper right")
    figure.savefig(path, dpi=80)
    plt.close(figure)


def _knee(panel: Any, knees: Mapping[str, Sequence[Point]], ratio: float) -> None:
    for name, points in knees.items():
        plateau = max(point.predicted for point in points)
        panel.plot(
            [point.ratio for point in points],
            [point.tokens_per_second / plateau for point in points],
            marker="o",
            markersize=3,
            label=name,
        )
    panel.axvline(ratio, color="gray", linestyle="--", linewidth=1, label=f"γ·c·B_v/B_d = {ratio:.2f}")
    panel.set(xlabel="drafters per verifier", ylabel="tokens/s over the closed form's plateau", ylim=(0, 1.1))
    panel.set_title("The knee is where the ratio says, if there are sessions enough")
    panel.legend(fontsize=8)


def _bent(panel: Any, bent: Mapping[str, Sequence[Point]]) -> None:
    for name, points in bent.items():
        shares = [point.tokens_per_second / point.predicted for point in points]
        panel.plot(range(len(shares)), shares, marker="o", markersize=3, label=name)
    panel.axhline(1.0, color="gray", linestyle="--", linewidth=1)
    panel.set(xlabel="step of each sweep (see the page)", ylabel="tokens/s over the closed form", ylim=(0, 1.1))
    panel.set_title("At the ratio, one assumption bent at a time")
    panel.legend(fontsize=8)


def _story(panel: Any, moments: Sequence[Moment], title: str) -> None:
    times = [moment.at for moment in moments]
    panel.plot(times, [moment.tokens_per_second for moment in moments], color="tab:blue", linewidth=1)
    panel.set(xlabel="seconds", ylabel="tokens/s", title=title)
    panel.set_ylim(bottom=0)
    servers = panel.twinx()
    servers.step(times, [moment.verifiers for moment in moments], color="tab:red", label="verifiers")
    servers.step(times, [moment.drafters for moment in moments], color="tab:green", label="drafters")
    servers.set_ylim(bottom=0)
    servers.legend(fontsize=8, loc="lower right")
