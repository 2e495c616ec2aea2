"""Reused prefixes equal a session's own computation, and exported KV is restored bit for bit."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from specdec.engine import Chunk, NativeEngine
from specdec.errors import InternalError
from specdec.rules import blocks
from specdec.rules.blocks import BLOCK_TOKENS
from tests.support.kv_backends import session_kv
from tests.support.tiny_models import ARCHITECTURES

pytestmark = pytest.mark.integration

Load = Callable[..., NativeEngine]
PROMPT = [(7 + 31 * i * i) % 320 for i in range(70)]
SHARED = 4 * BLOCK_TOKENS
NEW_TOKENS = 20


def greedy(engine: NativeEngine, session: str, prompt: list[int]) -> list[int]:
    """Return tokens of plain greedy decoding, after the KV that the session has."""
    tokens = list(prompt)
    while len(tokens) < len(prompt) + NEW_TOKENS:
        logits = engine.forward([Chunk(session, tokens[engine.length(session) :], 1)])
        tokens.append(int(logits[0].argmax()))
    return tokens[len(prompt) :]


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_session_with_a_shared_prefix_says_what_it_would_say_alone(architecture: str, load: Load) -> None:
    alone, shared = load(architecture), load(architecture)
    other = [*PROMPT[:-2], 5, 9]
    answers = []
    for name, prompt in (("a", PROMPT), ("b", other)):
        alone.admit(name, 200)
        answers.append(greedy(alone, name, prompt))
    shared.admit("a", 200, PROMPT)
    assert greedy(shared, "a", PROMPT) == answers[0]
    shared.admit("b", 200, other)
    assert shared.length("b") == len(PROMPT) - 2
    assert greedy(shared, "b", other) == answers[1]
    shared.release("a")
    shared.release("b")
    shared.admit("c", 200, [*PROMPT, *answers[0]])
    assert shared.length("c") == (len(PROMPT) + NEW_TOKENS) // BLOCK_TOKENS * BLOCK_TOKENS
    shared.truncate("c", SHARED)
    assert greedy(shared, "c", PROMPT) == answers[0]


def test_a_prefix_computed_in_one_pass_is_the_same_to_the_bit(load: Load) -> None:
    engine = load()
    engine.admit("a", 100, PROMPT)
    engine.forward([Chunk("a", PROMPT[:SHARED], 0)])
    engine.forward([Chunk("a", PROMPT[SHARED:], 0)])
    engine.admit("b", 100, PROMPT)
    assert torch.equal(session_kv(engine, "a", 0, SHARED), session_kv(engine, "b", 0, SHARED))
    rows = []
    for name in ("b", "a"):
        engine.truncate(name, SHARED)
        rows.append(engine.forward([Chunk(name, PROMPT[SHARED:], 1)]))
    assert torch.equal(*rows)


def test_tokens_of_one_domain_save_another_nothing(load: Load) -> None:
    engine = load()
    engine.admit("a", 100, PROMPT, "alice")
    engine.forward([Chunk("a", PROMPT, 1)])
    engine.release("a")
    for name, domain, length in (("b", "bob", 0), ("c", "", 0), ("d", "alice", SHARED)):
        engine.admit(name, 100, PROMPT, domain)
        assert engine.length(name) == length


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_what_one_engine_exports_another_goes_on_from_to_the_bit(load: Load, dtype: str) -> None:
    one, other = load(dtype=dtype), load(dtype=dtype)
    assert one.facts.fingerprint == other.facts.fingerprint
    one.admit("a", 200, PROMPT)
    one.forward([Chunk("a", PROMPT, 0)])
    parts = [session_kv(one, "a", start, start + 2 * BLOCK_TOKENS) for start in (0, 2 * BLOCK_TOKENS)]
    assert all(part.device.type == "cpu" and part.is_contiguous() for part in parts)
    other.admit("b", 200, PROMPT)
    for index, part in enumerate(parts):
        start = index * 2 * BLOCK_TOKENS
        assert other.restore("b", start, PROMPT[start : start + 2 * BLOCK_TOKENS], part)
    assert torch.equal(session_kv(other, "b", 0, SHARED), session_kv(one, "a", 0, SHARED))
    one.truncate("a", SHARED)
    rest = PROMPT[SHARED:]
    assert torch.equal(one.forward([Chunk("a", rest, 6)]), other.forward([Chunk("b", rest, 6)]))


def test_restored_blocks_serve_later_sessions_too(load: Load, tiny: Callable[[str], Path]) -> None:
    engine = load()
    engine.admit("a", 200)
    engine.forward([Chunk("a", PROMPT, 0)])
    kv = session_kv(engine, "a", 0, SHARED)
    fresh = load()
    fresh.admit("b", 200, PROMPT)
    fresh.restore("b", 0, PROMPT[:SHARED], kv)
    fresh.forward([Chunk("b", PROMPT[SHARED:], 0)])
    fresh.release("b")
    fresh.admit("c", 200, PROMPT)
    assert fresh.length("c") == SHARED
    assert len(blocks.chain(blocks.root(fresh.facts.fingerprint), PROMPT)) * BLOCK_TOKENS == SHARED


def test_what_does_not_fit_is_not_restored(load: Load) -> None:
    engine = load()
    engine.admit("a", 200)
    engine.forward([Chunk("a", PROMPT[:20], 0)])
    kv = session_kv(engine, "a", 0, 16)
    with pytest.raises(InternalError, match="for 20 tokens, not 0"):
        engine.restore("a", 0, PROMPT[:16], kv)
    engine.admit("b", 200)
    with pytest.raises(InternalError, match="keys and values are"):
        engine.restore("b", 0, PROMPT[:15], kv)
    assert engine.length("b") == 0
