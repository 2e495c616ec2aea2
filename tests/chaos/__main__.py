"""`python -m tests.chaos`: inject random faults for minutes, and report wrong tokens and recovery times."""

import argparse
import asyncio
import json
import secrets
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from tests.chaos.cluster import Setup
from tests.chaos.faults import PROCESSES, InTurn, Kind, schedule
from tests.chaos.report import Report, quantile
from tests.chaos.run import Load, chaos
from tests.chaos.scenarios import PROMPT
from tests.support.tiny_models import make_tiny_model

BEYOND_LEASE = 2.0
"""Seconds after the end of the lease within which the streams of a killed verifier must continue."""
HEAD_DIM = 32
"""Head dimension of the models, the smallest that vLLM supports on a CPU."""
_IN_TURN = "kill the verifiers in turn instead, until clients have so many tokens"


def main(write: Callable[[str], object] = sys.stdout.write) -> int:
    """Run and report.

    Return 1 if a token was wrong, if streams took too long to leave a killed verifier, or if a store of KV blocks
    restored fewer than half of the prompts that moved, or none moved.
    """
    options = _options()
    folder = Path(tempfile.mkdtemp(prefix="specdec-chaos-"))

    def say(line: str) -> None:
        write(line + "\n")
        sys.stdout.flush()

    length = f"{options.in_turn} tokens" if options.in_turn else f"{options.seconds:.0f} s"
    say(f"seed {options.seed}, {length}, logs in {folder}")
    target, drafter = options.pair or (
        make_tiny_model(folder / "target", "llama", seed=0, context=1024, head_dim=HEAD_DIM),
        make_tiny_model(folder / "drafter", "llama", seed=0, context=1024, noise=0.02, head_dim=HEAD_DIM),
    )
    faults = (
        InTurn(options.in_turn, options.spacing, options.kills)
        if options.in_turn
        else tuple(schedule(options.seed, options.seconds, options.every, options.kinds, options.roles))
    )
    salted = options.kv_bytes > 0
    load = Load(options.clients, options.scenarios, options.tokens, prompt=options.prompt, salted=salted)
    vllm = {"vllm_python": options.vllm_python, "vllm_verifiers": options.vllm_verifiers}
    setup = Setup(target, drafter, kv_bytes=options.kv_bytes, **vllm)
    report = asyncio.run(chaos(setup, load, faults, options.seed, folder, say))
    for line in report.lines():
        say(line)
    if options.json:
        options.json.write_text(json.dumps(report.as_json(), indent=2) + "\n")
    restored = not options.kv_bytes or 2 * report.moves.restored >= max(report.moves.moved, 1)
    failed = bool(report.findings) or not restored or not _recovered_from_verifiers(report)
    if not failed:
        shutil.rmtree(folder)
    return int(failed)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--seconds", type=float, default=300.0, help="how long faults happen")
    parser.add_argument("--every", type=float, default=4.0, help="mean seconds between faults")
    parser.add_argument("--seed", type=int, default=secrets.randbits(31), help="of faults and requests")
    parser.add_argument("--kinds", type=Kind, nargs="*", default=list(Kind), help="kinds of faults")
    parser.add_argument("--roles", nargs="*", default=PROCESSES, choices=PROCESSES, help="processes that get faults")
    parser.add_argument("--in-turn", type=int, default=0, metavar="TOKENS", help=_IN_TURN)
    parser.add_argument("--spacing", type=int, default=2000, help="tokens between kills in turn, with all ready")
    parser.add_argument("--kills", type=int, default=4, help="least number of kills in turn")
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument(
        "--scenarios", type=int, default=12, help="requests, an even number, each also with a stop string"
    )
    parser.add_argument("--tokens", type=int, default=400, help="of one answer")
    parser.add_argument("--prompt", type=int, default=PROMPT, help="tokens of every prompt")
    parser.add_argument("--pair", type=Path, nargs=2, metavar=("TARGET", "DRAFTER"), help="instead of tiny models")
    parser.add_argument("--kv-bytes", type=int, default=0, help="memory of a store of KV blocks")
    parser.add_argument("--vllm-python", type=Path, help="of an environment with vLLM, on which verifiers then run")
    parser.add_argument("--vllm-verifiers", type=int, default=1, help="of the two, on vLLM if there is an environment")
    parser.add_argument("--json", type=Path, help="where to write the report")
    return parser.parse_args()


def _recovered_from_verifiers(report: Report) -> bool:
    waits = report.recoveries().get("kill verifier", [])
    return not waits or quantile(waits, 0.5) <= report.timing.lease + BEYOND_LEASE


if __name__ == "__main__":
    sys.exit(main())
