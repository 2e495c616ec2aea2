"""Speculative beam search against plain beam search, on the demo pair in process: python -m benchmarks.beams

Both search the same prompts in turn with the same engine. For each width, the output has the share of accepted steps,
the steps for each pass of the target, and the CPU time of plain search over that of speculative search.
"""

import argparse
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import typer

from drafter_service.drafters.beam_drafter import propose_beams
from specdec.beams.options import BeamOptions
from specdec.beams.search import BeamSearch
from specdec.engine import NativeEngine
from specdec.engine.byte_tokenizer import ByteTokenizer
from specdec.engine.loader import load_tokenizer_json
from specdec.wire.beams import MOST_NODES, BeamAsk, ProposedBeam
from verifier_service.beams.target_beams import TargetBeams

DEMO = Path("models/demo")
WIDTHS = (2, 4, 8)


@dataclass(frozen=True)
class Run:
    """One search."""

    tokens: tuple[int, ...]
    score: float
    steps: int
    passes: int
    seconds: float
    """CPU time."""


def search(
    target: NativeEngine, drafter: NativeEngine | None, prompt: Sequence[int], width: int, length: int, gamma: int
) -> Run:
    """Search for the continuation of a prompt, with the proposals of `drafter` if there is one."""
    began, passes = time.process_time(), 0
    ends = frozenset(target.facts.end_token_ids)
    state = BeamSearch(BeamOptions(width), ends, length)
    beams, steps = TargetBeams("beams", target, prompt, len(prompt) + length, "", 512), 0
    while not state.done:
        proposed: Sequence[ProposedBeam] = ()
        left = min(gamma, MOST_NODES // (2 * width), length - state.length - 1)
        if drafter is not None and left > 0:
            running = tuple((beam.tokens, beam.score) for beam in state.running)
            proposed = _proposed(drafter, BeamAsk("", tuple(prompt), running, 2 * width, left, tuple(ends)))
        state, more = beams.advance(state, proposed)
        steps, passes = steps + more, passes + 1
    beams.release()
    return Run(state.best.tokens, state.best.score, steps, passes, time.process_time() - began)


def _proposed(drafter: NativeEngine, ask: BeamAsk) -> Sequence[ProposedBeam]:
    """Run all passes of a proposal."""
    passes = propose_beams(drafter, ask, 512)
    while True:
        try:
            next(passes)
        except StopIteration as done:
            beams: Sequence[ProposedBeam] = done.value
            return beams


def main() -> None:
    """Measure and print one row for each width."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--prompts", type=int, default=12)
    parser.add_argument("--length", type=int, default=32)
    parser.add_argument("--gamma", type=int, default=3)
    given = parser.parse_args()
    target, drafter = (
        NativeEngine.load(DEMO / name, dtype="float32", device="cpu", kv_bytes=2**28, threads=1)
        for name in ("target", "drafter")
    )
    tokenizer = ByteTokenizer(load_tokenizer_json(DEMO / "target") or "", target.vocab_size, ())
    texts = [path.read_text(encoding="utf-8")[:400] for path in sorted(Path("specdec").rglob("*.py"))]
    prompts = [tokenizer.encode(text.encode())[:60] for text in texts if len(text) == 400][: given.prompts]
    for width in WIDTHS:
        pairs = []
        for prompt in prompts:
            plain = search(target, None, prompt, width, given.length, given.gamma)
            pairs.append((plain, search(target, drafter, prompt, width, given.length, given.gamma)))
        if any(plain.tokens != drafted.tokens for plain, drafted in pairs):
            raise SystemExit(f"width {width}: drafts changed a result")
        steps, passes = (sum(getattr(drafted, name) for _, drafted in pairs) for name in ("steps", "passes"))
        factor = median(plain.seconds / drafted.seconds for plain, drafted in pairs)
        typer.echo(
            f"width {width}: accepted {1 - passes / steps:.2f}, steps a pass {steps / passes:.2f}, factor {factor:.2f}"
        )


if __name__ == "__main__":
    main()
