"""The engine over a real, tiny model: sessions, capacity, logits, and the state after an error."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from specdec.engine import Chunk, NativeEngine
from specdec.engine.cpu.wide_passes import WIDE
from specdec.engine.cuda.backend import PagedBackend
from specdec.engine.decoder import Decoder
from specdec.engine.kv.pool import KvMemory
from specdec.errors import InternalError, ModelRefused
from specdec.rules.blocks import BLOCK_TOKENS
from specdec.sampling import vocabulary
from tests.support.tiny_models import END_TOKEN_ID, make_tokenizer

pytestmark = pytest.mark.integration

Load = Callable[..., NativeEngine]
TOKENS = [3, 200, 41, 5, 77, 9]
TOKEN_BYTES = 3 * 2 * (8 + 8) * 4
SLAB_PAGE = 128
"""Tokens in a page of a slab: with 8 floats each, one head fills a page of the operating system."""


def test_the_engine_knows_its_models_facts(load: Load, kv_backend: dict[str, Any]) -> None:
    engine = load()
    assert (engine.facts.name, engine.vocab_size, engine.context_length) == ("llama", 320, 256)
    assert engine.facts.end_token_ids == {END_TOKEN_ID}
    assert engine.tokenizer_hash == vocabulary.fingerprint(make_tokenizer(320).get_vocab())
    assert engine.device.type == kv_backend["device"]
    assert engine.facts.fingerprint == load().facts.fingerprint != load(dtype="bfloat16").facts.fingerprint


def test_logits_are_those_of_the_plain_model_without_the_padding_columns(
    load: Load, tiny: Callable[[str], Path]
) -> None:
    engine = load()
    model = AutoModelForCausalLM.from_pretrained(tiny("llama"), dtype=torch.float32)
    engine.admit("a", 16)
    with torch.no_grad():
        want = model(torch.tensor([TOKENS])).logits[0]
    got = engine.forward([Chunk("a", TOKENS, len(TOKENS))])
    assert want.shape[1] == 327
    assert got.dtype == torch.float32
    torch.testing.assert_close(got.cpu(), want[:, :320], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("architecture", ["llama", "gpt2"])
def test_kept_rows_of_all_chunks_come_in_the_order_of_the_chunks(load: Load, architecture: str) -> None:
    engine = load(architecture)
    alone = {}
    for name, tokens in {"a": TOKENS, "b": TOKENS[::-1], "c": [8, 9]}.items():
        engine.admit(name, 16)
        alone[name] = engine.forward([Chunk(name, tokens, len(tokens))])
        engine.truncate(name, 0)
    together = engine.forward([Chunk("c", [8, 9], 1), Chunk("a", TOKENS, 0), Chunk("b", TOKENS[::-1], 3)])
    torch.testing.assert_close(together, torch.cat([alone["c"][1:], alone["b"][3:]]), rtol=1e-4, atol=1e-4)


def test_passes_over_many_tokens_have_their_own_threads_and_equal_logits(
    load: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads, run = set[int](), Decoder.run

    def seen(decoder: Decoder, ids: torch.Tensor, *rest: Any) -> torch.Tensor:
        threads.add(torch.get_num_threads())
        return run(decoder, ids, *rest)

    few, many = Chunk("a", TOKENS[:2], 1), Chunk("b", [*range(1, WIDE - 1)], 2)
    logits = list[torch.Tensor]()
    for wide in (None, 2):
        engine = load(wide_threads=wide)
        monkeypatch.setattr(Decoder, "run", seen)
        for name in "ab":
            engine.admit(name, 100)
        for chunks, expected in (([few, many], {wide or 1}), ([few], {1})):
            logits.append(engine.forward(chunks))
            assert threads == expected
            threads.clear()
        monkeypatch.setattr(Decoder, "run", run)
    torch.testing.assert_close(torch.cat(logits[:2]), torch.cat(logits[2:]))


def test_a_chunk_may_want_no_logits_at_all(load: Load) -> None:
    engine = load()
    engine.admit("a", 16)
    assert engine.forward([Chunk("a", TOKENS, 0)]).shape == (0, 320)
    assert engine.length("a") == len(TOKENS)
    assert engine.forward([]).shape == (0, 320)


def test_returned_logits_belong_to_the_caller(load: Load) -> None:
    engine = load()
    engine.admit("a", 16)
    logits = engine.forward([Chunk("a", TOKENS, 2)])
    logits[0, 3] = 1.0
    assert not logits.is_inference()
    assert logits.is_contiguous()


def test_a_rejected_position_is_never_read_again(load: Load) -> None:
    engine = load()
    for name in ("a", "b"):
        engine.admit(name, 16)
        engine.forward([Chunk(name, TOKENS, 0)])
    engine.forward([Chunk("a", [1, 2, 3], 3)])
    engine.truncate("a", len(TOKENS))
    rolled_back = engine.forward([Chunk("a", [10, 11], 2)])
    assert torch.equal(rolled_back, engine.forward([Chunk("b", [10, 11], 2)]))


def test_a_freed_session_leaks_nothing_into_the_next_session(load: Load) -> None:
    engine = load()
    engine.admit("a", 256)
    first = engine.forward([Chunk("a", TOKENS, 1)])
    engine.release("a")
    engine.admit("a", 256)
    assert engine.length("a") == 0
    assert torch.equal(engine.forward([Chunk("a", TOKENS, 1)]), first)


def test_admission_holds_the_budget_and_the_context(load: Load, kv_backend: dict[str, Any]) -> None:
    page = BLOCK_TOKENS if isinstance(kv_backend.get("kv_backend"), PagedBackend | None) else SLAB_PAGE
    page_bytes = page * TOKEN_BYTES
    engine = load(kv_bytes=page_bytes + TOKEN_BYTES)
    assert engine.memory == KvMemory(page_bytes, live=0, cached=0)
    assert engine.can_ever_admit(page)
    assert not engine.can_ever_admit(page + 1)
    assert not engine.can_ever_admit(0)
    assert engine.admit("a", page, TOKENS)
    assert engine.memory.live == page_bytes
    assert not engine.admit("b", page - 1, TOKENS)
    engine.release("a")
    assert engine.admit("b", page - 1, TOKENS)
    assert not load().can_ever_admit(257)
    with pytest.raises(ModelRefused, match="hold no page"):
        load(kv_bytes=page_bytes - 1)


def test_bad_use_is_an_internal_error_and_changes_nothing(load: Load) -> None:
    engine = load()
    engine.admit("a", 4)
    engine.admit("b", 4)
    engine.forward([Chunk("a", [1, 2, 3], 0)])
    bad: list[tuple[list[Chunk], str]] = [
        ([Chunk("x", [1], 1)], "x is not admitted"),
        ([Chunk("b", [1], 1), Chunk("a", [1, 2], 1)], "a is over its limit of 4"),
        ([Chunk("b", [1], 1), Chunk("b", [1], 1)], "two chunks"),
        ([Chunk("b", [320], 1)], "outside 0..319"),
    ]
    for chunks, told in bad:
        with pytest.raises(InternalError, match=told):
            engine.forward(chunks)
    for use in (engine.release, engine.length):
        with pytest.raises(InternalError, match="x is not admitted"):
            use("x")
    assert (engine.length("a"), engine.length("b")) == (3, 0)


def test_a_pass_that_fails_in_the_middle_can_be_tried_again(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = load()
    engine.admit("a", 16)
    engine.admit("b", 16)
    engine.forward([Chunk("a", TOKENS, 0)])
    chunks = [Chunk("a", [7, 8], 2), Chunk("b", [9], 1)]

    def fail(self: Decoder, *inputs: Any) -> None:
        run(self, *inputs)
        raise RuntimeError("out of memory")

    run = Decoder.run
    with monkeypatch.context() as patch:
        patch.setattr(Decoder, "run", fail)
        with pytest.raises(RuntimeError, match="out of memory"):
            engine.forward(chunks)
    assert (engine.length("a"), engine.length("b")) == (6, 0)
    again = engine.forward(chunks)
    engine.admit("c", 16)
    whole = engine.forward([Chunk("c", [*TOKENS, 7, 8], 2)])
    torch.testing.assert_close(again[:2], whole, rtol=1e-4, atol=1e-4)


def test_bfloat16_halves_the_kv_and_stays_near_float32(load: Load) -> None:
    engine = load(dtype="bfloat16", kv_bytes=2 * SLAB_PAGE * TOKEN_BYTES // 2)
    exact = load()
    assert engine.can_ever_admit(2 * SLAB_PAGE)
    for each in (engine, exact):
        each.admit("a", 16)
    got, want = (each.forward([Chunk("a", TOKENS, 6)]) for each in (engine, exact))
    assert got.dtype == torch.float32
    assert float((got - want).norm() / want.norm()) < 0.1


def test_threads_are_set_when_asked_for(load: Load) -> None:
    before = torch.get_num_threads()
    try:
        load(threads=2)
        assert torch.get_num_threads() == 2
        load(threads=None)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
