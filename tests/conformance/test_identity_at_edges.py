"""Greedy tokens equal those of `transformers` at every γ from 1 to 16, on both sides of every page's and slab's edge.

Each draft is right up to a chosen position and wrong after it. The verdict must continue with the same tokens, and so
must the plain round that reads the KV left by the rejected drafts.
"""

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from specdec.engine import NativeEngine
from specdec.engine.cpu.slabs import page_tokens
from specdec.engine.cuda.pages import PAGE_TOKENS
from specdec.engine.kv.backend import OpenKvBackend
from specdec.rules.draft import Draft, Verdict
from specdec.rules.speculation import Mode, Speculation
from specdec.sampling.params import SamplingParams
from specdec.wire.generation import GenerationCall
from tests.conformance.model_folders import root
from tests.conformance.plain_model import PlainModel
from tests.conformance.small_pair import PROMPT
from tests.support.kv_backends import KV_BACKENDS
from tests.support.tiny_models import make_tiny_model
from verifier_service.backends.batch_plan import Row, ScheduledChunk
from verifier_service.backends.target_pass import verify_batch

pytestmark = pytest.mark.integration

CONTEXT = 160
GAMMAS = range(1, 17)
VOCAB_SIZE = 32


@cache
def folder() -> Path:
    """Return the folder of a one-layer model whose keys fill a page of the operating system within the context."""
    return make_tiny_model(root() / "edges", vocab_size=VOCAB_SIZE, layers=1, context=CONTEXT, seed=5)


@cache
def greedy() -> tuple[int, ...]:
    """Return the prompt and the tokens of transformers after it, up to the length of the context."""
    model, tokens = PlainModel(folder()), PROMPT
    while len(tokens) < CONTEXT:
        tokens += (int(model.logits([tokens]).argmax()),)
    return tokens


def committed_lengths(engine: NativeEngine) -> list[int]:
    """Return lengths on both sides of every edge, and lengths from which the longest draft ends at the edge."""
    size = page_tokens(engine.kv_layout)
    edges = {*range(PAGE_TOKENS, 4 * PAGE_TOKENS, PAGE_TOKENS), *range(size, CONTEXT - 18, size)}
    return sorted({edge + off for edge in edges for off in (-1, 0, 1)} - {0})


def judged(engine: NativeEngine, committed: int, draft: tuple[int, ...]) -> Verdict:
    """Return the verdict on a draft after the first `committed` greedy tokens."""
    tokens, start = greedy()[:committed], engine.length("s")
    call = GenerationCall(
        tokens=tokens,
        prompt_len=len(PROMPT),
        sampling=SamplingParams(temperature=0.0),
        max_tokens=1,
        stop_token_ids=(),
        speculation=Speculation(Mode.COUPLED),
    )
    row = Row(call, "s", 0.0, CONTEXT, tokens, committed, Draft(draft))
    (result,) = verify_batch(engine, [ScheduledChunk(row, start, committed - start)])
    assert isinstance(result, Verdict)
    return result


@pytest.mark.parametrize("open_backend", KV_BACKENDS.values(), ids=KV_BACKENDS)
def test_no_draft_length_and_no_edge_changes_a_token(open_backend: Callable[[], OpenKvBackend]) -> None:
    given = {"dtype": "float32", "device": "cpu", "kv_bytes": 1 << 24, "threads": 1}
    engine, truth = NativeEngine.load(folder(), kv_backend=open_backend(), **given), greedy()
    for committed in committed_lengths(engine):
        engine.admit("s", CONTEXT)
        for gamma in GAMMAS:
            right = truth[committed : committed + gamma]
            for kept in {0, gamma // 2, gamma}:
                wrong = tuple((token + 1) % VOCAB_SIZE for token in right[kept:])
                verdict = judged(engine, committed, right[:kept] + wrong)
                assert verdict == Verdict(truth[committed : committed + kept + 1], kept, gamma)
                after = committed + kept + 1
                assert judged(engine, after, ()).tokens == truth[after : after + 1]
                engine.truncate("s", committed - 1)
        engine.release("s")
