"""The page docs/paper.md, and its pictures."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from benchmarks.machine import ROOT
from benchmarks.paper import closed, places, published, worked
from benchmarks.paper.measured import Approximation, Speed
from benchmarks.reports.plots import draw

PAGE = ROOT / "docs" / "paper.md"
PICTURES = ROOT / "docs" / "paper"
_BLOCK = "<!-- {name} -->\n{text}\n<!-- end of {name} -->"
_NAMES = ("random", "unigram", "bigram", "model")


def closed_parts() -> Mapping[str, str]:
    """Return the blocks of the page that follow from formulas alone, by name."""
    return {
        "table 1": closed.operations(),
        "table 4, predicted": closed.predictions(),
        "lenience, predicted": closed.lenient_speeds(),
        "text": closed.text_figures(),
        "worked": worked.render(),
        "places": places.render(),
    }


def block(page: str, name: str) -> str:
    """Return the content of one block of a page."""
    found = re.search(rf"<!-- {name} -->\n(.*?)\n<!-- end of {name} -->", page, flags=re.DOTALL)
    return found[1] if found else ""


def write(template: str, parts: Mapping[str, str], page: Path = PAGE) -> None:
    """Fill the template's blocks. Each stays between its marks, so that it can be found again."""
    for name, text in parts.items():
        template = template.replace(f"<!-- {name} -->", _BLOCK.format(name=name, text=text))
    page.write_text(template, encoding="utf-8")


def alphas(found: Mapping[float, Mapping[str, Approximation]]) -> str:
    """Return Table 3, with the baseline of A.2."""
    rows = [
        [name, f"{temperature:g}", f"{each.alpha:.3f}", published.ALPHA.get((name, int(temperature)), ""),
         f"{each.served:.3f}", "" if temperature == 0 else f"{each.rejection:.4f}"]
        for temperature, by_name in found.items()
        for name in _NAMES
        for each in [by_name[name]]
    ]  # fmt: skip
    return closed.markdown(
        ("approximation", "T", "α, dense q", "paper, all targets", "α, served q̂", "rejection sampling (A.2)"), rows
    )


def leniences(found: Mapping[float, Mapping[str, Approximation]]) -> str:
    """Return Table 5, and its counterpart at temperature 0."""
    rows = []
    for temperature, by_name in found.items():
        for name in _NAMES:
            theirs: tuple[float, ...] | None = published.LENIENT.get(name) if temperature == 1 else None
            if temperature == 0 and name == "model":
                theirs = tuple(alpha for alpha, _ in published.LENIENT_GREEDY)
            ours = [f"{alpha:.3f}" for alpha in by_name[name].lenient]
            cells = zip(ours, theirs or [""] * len(ours), strict=True)
            rows.append([name, f"{temperature:g}", *(f"{our} / {their}" if their else our for our, their in cells)])
    return closed.markdown(("approximation", "T", *(f"ℓ = {ell:g}" for ell in published.LENIENCES)), rows)


def speeds(found: Mapping[float, Mapping[str, Speed]]) -> str:
    """Return our counterparts of Tables 2 and 4."""
    rows = [
        [name, f"{temperature:g}", str(each.gamma), f"{each.alpha:.2f}", f"{each.c:.2f}", f"{each.expected:.2f}",
         str(each.measured)]
        for temperature, by_name in found.items()
        for name, each in by_name.items()
    ]  # fmt: skip
    return closed.markdown(("drafter", "T", "γ", "α", "c", "by Theorem 3.8", "measured"), rows)


def pictures(traces: Mapping[int, Sequence[tuple[int, int]]], c: float, tokens: int, out: Path = PICTURES) -> None:
    """Draw Figures 2 to 5."""
    draw([{"charts": [asdict(chart) for chart in closed.curves()]}], out)
    _trace_picture(traces, c, tokens, out / "figure-5.png")


def _trace_picture(traces: Mapping[int, Sequence[tuple[int, int]]], c: float, tokens: int, file: Path) -> None:
    """Draw bars in time, in target steps: the drafts of a round, then its pass. The lowest row is plain decoding."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 2.4), layout="constrained")
    axes = figure.subplots()
    rows = [*((f"γ = {gamma}", [drafted for drafted, _ in rounds]) for gamma, rounds in traces.items())]
    rows.append(("plain", [0] * tokens))
    for row, (_, rounds) in enumerate(rows):
        at = 0.0
        for drafted in rounds:
            axes.broken_barh([(at + k * c, c) for k in range(drafted)], (-row, 0.7), facecolor="C0", edgecolor="white")
            axes.broken_barh([(at + drafted * c, 1.0)], (-row, 0.7), facecolor="C4", edgecolor="white")
            at += drafted * c + 1.0
    axes.set_yticks([0.35 - row for row in range(len(rows))], [name for name, _ in rows])
    axes.set_xlabel(f"time in target steps for {tokens} tokens (blue: drafts, purple: passes of the target)")
    figure.savefig(file, dpi=120)
