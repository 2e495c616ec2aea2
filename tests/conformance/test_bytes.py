"""Bytes of drafts on the wire: six for each id of q̂ and a small header for each draft, at any vocabulary size."""

import asyncio
import urllib.request
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from specdec.rules.speculation import Mode
from specdec.sampling.params import SamplingParams
from tests.conformance.notes import Note
from tests.conformance.served_pair import Ask, generate, running_drafter, running_verifier
from tests.support.tiny_models import make_tiny_model

pytestmark = pytest.mark.integration

DEMO = Path(__file__).parents[2] / "models" / "demo"
GAMMA = 5
SUPPORT = 64
ID_BYTES = 6
"""Bytes of an int32 id and a uint16 weight."""
HEADER_BYTES = 48
"""Bytes around a token sent alone: session, epoch, base_len, prefix_hash, the token, and all tags and lengths."""
OTHER_BYTES = 16
"""Bytes of other content of a frame: an end, or the drafter's load."""
HELLO_BYTES = 256
PROMPT = (40, 41, 42, 43, 44, 45, 46)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Return the demo pair, with 2,048 ids, or if it is missing a tiny pair with 900."""
    if (DEMO / "target" / "config.json").exists() and (DEMO / "drafter" / "config.json").exists():
        return DEMO / "target", DEMO / "drafter"
    folder = tmp_path_factory.mktemp("bytes")
    target = make_tiny_model(folder / "target", seed=3, vocab_size=900)
    return target, make_tiny_model(folder / "drafter", seed=3, vocab_size=900, noise=0.02)


async def metrics(http: str) -> dict[str, float]:
    """Return a process's counters and gauges by name."""

    def scrape() -> str:
        with urllib.request.urlopen(f"http://{http}/metrics", timeout=10) as reply:
            return str(reply.read().decode())

    families = text_string_to_metric_families(await asyncio.to_thread(scrape))
    return {sample.name: sample.value for family in families for sample in family.samples}


@pytest.mark.parametrize(
    ("mode", "support"), [(Mode.REJECTION, SUPPORT), (Mode.BLOCK, SUPPORT), (Mode.COUPLED, 0)], ids=str
)
async def test_bytes_of_a_round_are_bound_by_the_support_and_not_the_vocabulary(
    mode: Mode, support: int, folders: tuple[Path, Path], note: Note
) -> None:
    target, draft = folders
    work = [Ask(mode, SamplingParams(seed=seed), GAMMA, PROMPT, 48) for seed in range(4)]
    async with running_drafter(draft) as running:
        async with running_verifier(target, running.address) as client:
            vocab_size = (await client.info()).vocab_size
            done = await generate(client, work, at_once=len(work))
        sent = await metrics(running.http)
    total, drafted = sent["specdec_drafter_bytes_sent_total"], sent["specdec_drafter_tokens_total"]
    others = OTHER_BYTES * sent["specdec_drafter_frames_sent_total"] + HELLO_BYTES
    rounds = sum(bool(response.draft_tokens) for each in done for response in each.rounds)
    note(
        "bytes on the wire",
        f"{mode}, γ = {GAMMA}, V = {vocab_size}: {total / drafted:.0f} bytes a drafted token, {total / rounds:.0f} a "
        f"round, {drafted / rounds:.1f} tokens drafted a round, those ahead of need counted",
    )
    assert total <= drafted * (ID_BYTES * support + HEADER_BYTES) + others
    # This measures the drafts: every judged token was received, and its distribution if it has one.
    judged = sum(len(response.draft_tokens) // 4 for each in done for response in each.rounds)
    assert total >= judged * (4 + ID_BYTES * bool(support))
    assert drafted >= judged > 0
