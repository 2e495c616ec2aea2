"""The automatic draft length with good and bad drafters, on models as slow as those on an accelerator."""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

from benchmarks.reports.results import Report
from benchmarks.run import Ask
from benchmarks.sections.grid_cells import FAULTS, Grid, Loaded, Timing
from benchmarks.sections.lab import Lab
from benchmarks.systems.apart import Apart, DrafterSpec, StepTime, apart
from benchmarks.systems.steady import BURSTS

_TEXT = """\
Speculation left to the verifier ("auto") against none ("off") and against the best of a few fixed draft lengths. Their
slices take turns on one verifier and its drafter, so a slow moment of the machine affects all of them. Each has {turns}
slices of {seconds:g} s, or of {long:g} s with one drafting stream, whose speed varies. Models are compiled, and slowed
to the times of an accelerator: a pass of the target takes {target}, one of the drafter {drafter}. So processors have
time to spare, and the choices of "auto" are compared, not the contention of processes ([grid_stack](#grid_stack)). Each
stream asks for another text when its answer of {tokens} tokens has ended, and the starts are spread. All ways of a turn
get the same texts, and every turn has others. Auto / off is the ratio of the sums of all slices, with the middle half
of the turns. If it is within three standard errors of 0.97, auto and off have up to {more} turns. "Mixed" has half of
its sessions at temperature 0 and half at 1, and a burst of {burst} prompts every {pause:g} s. "Dead" is an address at
which nothing listens, "slow" adds 0.1 s to each step, and "lying" drafts made-up tokens with full certainty. The reason
is the most frequent one for rounds without a draft."""
DRAFTER = "drafter"
_WARM_UP = 2
"""Warm-up slices, run as one, in which the first trials of drafting end."""
_VARYING = 2
"""Number of streams below which slices are longer."""


@dataclass(frozen=True, slots=True)
class LoadedVerifier:
    """A verifier and its only drafter."""

    system: Apart

    def steady(self, asks: Sequence[Ask], streams: int, seconds: float, burst: Sequence[Ask]) -> float:
        """Return the tokens a second under a steady load."""
        return self.system.steady(asks, streams, seconds, DRAFTER, burst)

    def reasons(self) -> Counter[str]:
        """Return the number of rounds without drafts so far, by reason."""
        return Counter({name: count for name, count in self.system.reasons.items() if name})


def measure(lab: Lab) -> Report:
    """Measure every cell."""
    target, drafter = (StepTime(*lab.scale.grid_steps[at : at + 2]) for at in (0, 2))
    seconds, turns, more = lab.scale.grid_slices
    timing = Timing(seconds, turns, _WARM_UP * seconds, _VARYING, more)
    text = _TEXT.format(
        seconds=seconds,
        long=timing.slice("model", 1),
        turns=turns,
        more=more,
        tokens=lab.scale.grid_tokens,
        target=took(target),
        drafter=took(drafter),
        burst=lab.scale.grid_burst[0],
        pause=BURSTS,
    )
    return Grid("grid", text, timing, partial(_system, lab, (target, drafter))).measure(lab)


def took(step: StepTime) -> str:
    return f"{1000 * step.base:g} ms and {1000 * step.token:g} ms a token"


@contextmanager
def _system(lab: Lab, steps: tuple[StepTime, StepTime], drafter: str) -> Iterator[Loaded]:
    compiled = {"MODEL__COMPILE": str(lab.scale.compiled).lower()}
    spec = DrafterSpec(compiled, drafter) if drafter in FAULTS else DrafterSpec({**compiled, "KIND": drafter})
    with apart(lab.scale.pair, steps, {DRAFTER: spec}, compiled) as system:
        yield LoadedVerifier(system)
