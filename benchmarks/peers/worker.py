"""A peer in its own process: one JSON object a line in, one out. `python -m benchmarks.peers.worker SPEC`."""

import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import torch

from benchmarks.run import Ask, Peer


@dataclass(frozen=True, slots=True)
class Spec:
    """Kind and settings of a peer."""

    kind: Literal["engine", "hf", "hf lookup"]
    target: str
    drafter: str
    threads: int = 1
    compiled: bool = False


def make(spec: Spec) -> Peer:
    """Load the peer."""
    torch.set_num_threads(spec.threads)
    target, drafter = Path(spec.target), Path(spec.drafter)
    if spec.kind == "engine":
        from benchmarks.drafters import load_drafter
        from benchmarks.local import Local, load

        own = load(target, threads=spec.threads, compiled=spec.compiled)
        return Local(own, load_drafter("model", drafter, compiled=spec.compiled))
    from benchmarks.peers.hugging_face import HuggingFace

    return HuggingFace(target, drafter if spec.kind == "hf" else None)


def main() -> None:
    """Serve until the input ends."""
    peer = make(Spec(**json.loads(sys.argv[1])))
    answer = sys.stdout
    sys.stdout = sys.stderr  # library output must not be read as an answer
    answer.write("ready\n")
    answer.flush()
    for line in sys.stdin:
        asked = json.loads(line)
        run = peer.generate(Ask(**{**asked, "prompt": tuple(asked["prompt"])}))
        answer.write(json.dumps(asdict(run)) + "\n")
        answer.flush()


if __name__ == "__main__":
    main()
