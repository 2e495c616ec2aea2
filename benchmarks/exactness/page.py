"""docs/exactness.md: the laws in words, and the tables of measurements."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from benchmarks.exactness.rounds import Measured, Setting
from benchmarks.exactness.served import Speed
from specdec.planning.gamma import expected_tokens
from specdec.rules.speculation import Mode

TEMPLATE = Path(__file__).with_name("exactness.md")


BUSY = 4.0
"""Load average that the run alone does not reach."""


@dataclass(frozen=True)
class Conditions:
    """Conditions under which the tables were made."""

    date: str
    machine: str
    load: float
    """Load average of the last minute at the end of the run."""
    prompts: int
    length: int
    served: int
    """Number of tokens over which each speed is measured."""
    gamma: int


def render(
    conditions: Conditions,
    modes: Mapping[Setting, Measured],
    lengths: Mapping[Setting, Measured],
    speeds: Mapping[tuple[float, Mode], Speed],
) -> str:
    """Return the page."""
    tables = {
        "conditions": _conditions(conditions),
        "alpha": _alpha(modes),
        "modes": _modes(modes, speeds),
        "lengths": _lengths(lengths),
    }
    text = TEMPLATE.read_text(encoding="utf-8")
    for name, table in tables.items():
        text = text.replace(f"<!-- {name} -->", table)
    return text


def _conditions(at: Conditions) -> str:
    busy = " The machine was busy with other work: read times and speeds as a trial." if at.load > BUSY else ""
    return (
        f"Measured {at.date} on {at.machine}; load average {at.load:.1f} at the end of the run. The demo pair; "
        f"{at.prompts} held-out prompts, {at.length} tokens each, in one batch; speeds over {at.served} tokens, one "
        f"session at a time through a real drafter and a real verifier process, γ = {at.gamma}, "
        f"the modes taking turns, median.{busy}"
    )


def _alpha(modes: Mapping[Setting, Measured]) -> str:
    rows = [
        f"| {setting.temperature:g} | {found.chance:.3f} | {found.share:.3f} ± {found.share_error:.3f} "
        f"| {found.z:+.1f} |"
        for setting, found in modes.items()
        if not math.isnan(found.chance)
    ]
    head = "| temperature | mean Σ min(p, q̂) | accepted / (accepted + rejections) | difference, in standard errors |"
    return "\n".join([head, "|---|---|---|---|", *rows])


def _modes(modes: Mapping[Setting, Measured], speeds: Mapping[tuple[float, Mode], Speed]) -> str:
    head = "| temperature | mode | α | tokens a round | bytes a round | verdict, µs | tokens/s, `off` = 1 |"
    rows = []
    for temperature in dict.fromkeys(setting.temperature for setting in modes):
        off = speeds[temperature, Mode.OFF].tokens_per_second
        rows.append(f"| {temperature:g} | `off` | | 1 | 0 | | 1 |")
        for setting, found in modes.items():
            if setting.temperature == temperature:
                rows.append(_mode(setting, found, speeds[temperature, setting.mode], off))
    return "\n".join([head, "|---|---|---|---|---|---|---|", *rows])


def _mode(setting: Setting, found: Measured, speed: Speed, off: float) -> str:
    lossy = setting.lenience < 1.0
    name = f"`{setting.mode}`" + (f", ℓ = {setting.lenience:g}, **lossy**" if lossy else "")
    served = ("", "") if lossy else (f"{speed.bytes_per_round:.0f}", f"{speed.tokens_per_second / off:.2f}")
    tokens = f"{found.tokens:.2f} ± {found.tokens_error:.2f}"
    return (
        f"| {setting.temperature:g} | {name} | {found.share:.3f} | {tokens} | {served[0]} | {found.verdict_us:.0f} "
        f"| {served[1]} |"
    )


def _lengths(lengths: Mapping[Setting, Measured]) -> str:
    head = "| temperature | γ | tokens a round | (1 - α^(γ+1)) / (1 - α) | ratio |"
    rows = []
    for setting, found in lengths.items():
        predicted = expected_tokens(found.share, setting.gamma)
        rows.append(
            f"| {setting.temperature:g} | {setting.gamma} | {found.tokens:.2f} ± {found.tokens_error:.2f} "
            f"| {predicted:.2f} | {found.tokens / predicted:.2f} |"
        )
    return "\n".join([head, "|---|---|---|---|---|", *rows])
