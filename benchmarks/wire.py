"""Bytes of drafts on the wire, by the support of q̂, with both services in one process: `python -m benchmarks.wire`.

The drafter counts bytes as it sends them, including frames and fences. The count is divided by the rounds with a draft.
Drafts ahead of need are sent too, so a drafted token costs less than a round divided by its mean draft length.
"""

import argparse
import asyncio
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import structlog
from prometheus_client.parser import text_string_to_metric_families

from benchmarks import machine
from benchmarks.reports.pages import add_out, publish
from benchmarks.reports.results import Figure, Report, Table
from drafter_service.app import drafter
from drafter_service.config import DrafterSettings
from specdec.protos.verifier.v1 import verifier_pb2 as pb
from specdec.protos.verifier.v1.verifier_pb2_grpc import VerifierServiceStub
from specdec.rules.speculation import Mode
from specdec.sampling.params import SamplingParams
from specdec.serving.rpc.channel import open_channel
from specdec.wire.params import mode_to_pb, sampling_to_pb
from specdec.wire.tokens import tokens_to_bytes
from verifier_service.app import verifier
from verifier_service.config import VerifierSettings

DEMO = Path(__file__).parents[1] / "models" / "demo"
_TEXT = """\
The bytes that a drafter sends, frames and fences included, by the number of ids in the distribution that a draft was
drawn from: 64 is the default, and 2,048 is the demo pair's whole vocabulary. A drafter drafts ahead of need, so a round
sends more tokens than it verifies."""
PROMPT = (300, 301, 302, 303, 304, 305)
ANY_PORT = {"address": "127.0.0.1:0", "http": "127.0.0.1:0"}


@dataclass(frozen=True, slots=True)
class Sent:
    """Cost of one kind of draft."""

    kind: str
    sent: float
    drafted: float
    rounds: int

    def row(self) -> list[str]:
        """Return the cells of the row."""
        per_token, per_round = self.sent / self.drafted, self.sent / self.rounds
        return [self.kind, f"{per_token:,.0f}", f"{per_round:,.0f}", f"{self.drafted / self.rounds:.1f}"]


async def measure(kind: str, mode: Mode, support: int, gamma: int, tokens: int) -> Sent:
    """Generate with eight concurrent seeds, and count the bytes."""
    model = {"path": DEMO / "drafter", "device": "cpu"}
    settings = DrafterSettings.load(None, {"model": model, "support": support, **ANY_PORT})
    async with drafter(settings) as running:
        await running.ready()
        target = {"path": DEMO / "target", "device": "cpu"}
        given = {"model": target, "drafters": (running.address,), "drafting": {"timeout": 30.0}, **ANY_PORT}
        async with verifier(VerifierSettings.load(None, given)) as server, open_channel(server.address) as channel:
            stub = VerifierServiceStub(channel)
            await _met(stub)
            rounds = await asyncio.gather(*(_rounds(stub, mode, seed, gamma, tokens) for seed in range(8)))
        counted = await asyncio.to_thread(_counters, running.http)
    sent, drafted = counted["specdec_drafter_bytes_sent_total"], counted["specdec_drafter_tokens_total"]
    return Sent(kind, sent, drafted, sum(rounds))


async def _met(stub: Any) -> None:
    """Wait until the verifier has met its drafter."""
    while (await stub.GetVerifierInfo(pb.GetVerifierInfoRequest(), wait_for_ready=True)).drafters[0].state != "ready":  # noqa: ASYNC110
        await asyncio.sleep(0.01)


async def _rounds(stub: Any, mode: Mode, seed: int, gamma: int, tokens: int) -> int:
    """Return the number of rounds of a generation with a draft."""
    request = pb.GenerateRequest(
        session_id=str(seed),
        epoch=1,
        tokens=tokens_to_bytes(PROMPT),
        prompt_len=len(PROMPT),
        sampling=sampling_to_pb(SamplingParams(seed=seed)),
        max_tokens=tokens,
        speculation=pb.Speculation(mode=mode_to_pb(mode), gamma=gamma),
    )
    return sum([bool(response.draft_tokens) async for response in stub.Generate(request)])


def _counters(http: str) -> dict[str, float]:
    with urllib.request.urlopen(f"http://{http}/metrics", timeout=10) as reply:
        text = reply.read().decode()
    return {sample.name: sample.value for family in text_string_to_metric_families(text) for sample in family.samples}


async def report(gamma: int, tokens: int) -> Report:
    """Measure every support."""
    sent = [await measure(f"{ids:,} ids", Mode.REJECTION, ids, gamma, tokens) for ids in (8, 64, 2048)]
    sent.append(await measure("coupled: no q̂", Mode.COUPLED, 64, gamma, tokens))
    head = ("draft", "bytes a drafted token", "bytes a round", "tokens sent a round")
    figures = [Figure(f"bytes a round, {each.kind}", each.row()[2]) for each in sent]
    return Report("wire", f"{_TEXT} γ = {gamma}.", figures, [Table(head, [each.row() for each in sent])])


def main() -> None:
    """Measure, print and store the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gamma", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=64, help="of each of eight generations")
    add_out(parser)
    asked = parser.parse_args()
    load = machine.load()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger("error"))
    made = asyncio.run(report(asked.gamma, asked.tokens))
    publish(made, "python -m benchmarks.wire", asked.out, load=load)


if __name__ == "__main__":
    main()
