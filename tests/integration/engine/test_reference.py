"""The reference engine matches the logits of transformers for decoders and encoder-decoders after any rollback."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from specdec.engine.batch import Chunk
from specdec.engine.native import NativeEngine
from specdec.engine.reference import ReferenceEngine
from specdec.errors import InternalError, ModelRefused
from tests.support.seq2seq_models import SHAPES, make_seq2seq_model
from tests.support.tiny_models import ARCHITECTURES as TINY
from tests.support.tiny_models import make_tiny_model

TOKENS = [5, 9, 3, 7, 11, 2, 8, 40, 41, 42, 43, 44]
PROMPT = 5
ARCHITECTURES = (*SHAPES, "gpt2", "gemma2", "mistral", "bloom")


@pytest.fixture(scope="module")
def load(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], ReferenceEngine]:
    root = tmp_path_factory.mktemp("reference")

    def engine(architecture: str) -> ReferenceEngine:
        make = make_seq2seq_model if architecture in SHAPES else make_tiny_model
        folder = make(root / architecture, architecture, seed=1)
        return ReferenceEngine.load(folder, dtype="float32", device="cpu", kv_bytes=2**20, threads=1)

    return engine


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_pieces_and_rollbacks_give_the_logits_of_one_plain_pass(
    load: Callable[[str], ReferenceEngine], architecture: str
) -> None:
    engine = load(architecture)
    plain = engine.plain_logits(TOKENS, PROMPT)
    assert engine.admit("a", 64, TOKENS)
    assert engine.admit("b", 64, TOKENS)
    for name in ("a", "b"):
        engine.read_prompt(name, PROMPT)
    engine.forward([Chunk("a", TOKENS[:2], logits=0)])
    rows = [engine.forward([Chunk("a", TOKENS[2:PROMPT], logits=1), Chunk("b", TOKENS[:3], logits=0)])]
    rows.append(engine.forward([Chunk("a", [*TOKENS[PROMPT : PROMPT + 2], 77, 78], logits=4)])[:2])
    engine.truncate("a", PROMPT + 2)
    rows.append(engine.forward([Chunk("a", TOKENS[PROMPT + 2 :], logits=len(TOKENS) - PROMPT - 2)]))
    assert torch.allclose(torch.cat(rows), plain, atol=1e-4)
    engine.truncate("a", 3)
    again = engine.forward([Chunk("a", TOKENS[3:], logits=len(TOKENS) - PROMPT + 1)])
    assert torch.allclose(again, plain, atol=1e-4)
    assert engine.length("b") == 3


@pytest.mark.parametrize("architecture", sorted(TINY))
def test_the_native_engine_has_the_logits_of_the_reference(
    load: Callable[[str], ReferenceEngine], architecture: str, tmp_path: Path
) -> None:
    reference = load(architecture)
    folder = make_tiny_model(tmp_path / architecture, architecture, seed=1)
    native = NativeEngine.load(folder, dtype="float32", device="cpu", kv_bytes=2**22, threads=1)
    rows = []
    for engine in (reference, native):
        assert engine.admit("s", 64, TOKENS)
        assert engine.reserve("s", 64)
        first = engine.forward([Chunk("s", TOKENS[:PROMPT], logits=1)])
        draft = engine.forward([Chunk("s", [*TOKENS[PROMPT : PROMPT + 2], 77, 78], logits=4)])
        engine.truncate("s", PROMPT + 2)
        rest = engine.forward([Chunk("s", TOKENS[PROMPT + 2 :], logits=len(TOKENS) - PROMPT - 2)])
        rows.append(torch.cat([first, draft, rest]))
    assert torch.allclose(*rows, atol=1e-4)


@pytest.mark.parametrize("architecture", ["t5", "gpt2"])
def test_a_rejected_position_is_never_read_again(load: Callable[[str], ReferenceEngine], architecture: str) -> None:
    """The planted bug is a rollback that leaves the cache unchanged, which gives other logits."""
    engine = load(architecture)
    plain = engine.plain_logits(TOKENS, PROMPT)[-1]
    for crop in (True, False):
        assert engine.admit("s", 64, TOKENS)
        engine.read_prompt("s", PROMPT)
        engine.forward([Chunk("s", [*TOKENS[:-1], 99], logits=1)])
        if crop:
            engine.truncate("s", len(TOKENS) - 1)
        else:
            del engine._sequences["s"].tokens[-1:]
        found = engine.forward([Chunk("s", TOKENS[-1:], logits=1)])[0]
        assert torch.allclose(found, plain, atol=1e-4) is crop
        engine.release("s")


def test_a_pass_that_fails_changes_no_length_and_can_be_tried_again(
    load: Callable[[str], ReferenceEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = load("t5")
    for name in ("a", "b"):
        assert engine.admit(name, 64, TOKENS)
        engine.read_prompt(name, PROMPT)
        engine.forward([Chunk(name, TOKENS[: PROMPT + 1], logits=1)])
    whole, calls = engine._decode, iter([False, True])

    def failing(*arguments: object) -> torch.Tensor:
        logits = whole(*arguments)  # type: ignore[arg-type]
        if next(calls):
            raise RuntimeError("the device is gone")
        return logits

    monkeypatch.setattr(engine, "_decode", failing)
    chunks = [Chunk(name, TOKENS[PROMPT + 1 :], logits=1) for name in ("a", "b")]
    with pytest.raises(RuntimeError):
        engine.forward(chunks)
    assert [engine.length(name) for name in ("a", "b")] == [PROMPT + 1] * 2
    monkeypatch.setattr(engine, "_decode", whole)
    plain = engine.plain_logits(TOKENS, PROMPT)[-1]
    assert torch.allclose(engine.forward(chunks), torch.stack([plain, plain]), atol=1e-4)


def test_bad_use_is_an_internal_error(load: Callable[[str], ReferenceEngine]) -> None:
    engine = load("t5")
    assert engine.admit("s", 64, TOKENS)
    engine.read_prompt("s", PROMPT)
    with pytest.raises(InternalError, match="no logits within the prompt"):
        engine.forward([Chunk("s", TOKENS[:3], logits=1)])
    with pytest.raises(InternalError, match="computes no trees"):
        engine.forward([Chunk("s", [4, 5], logits=2, parents=[-1, -1])])
    with pytest.raises(InternalError, match="is not admitted"):
        engine.length("t")
    assert engine.length("s") == 0
    assert not engine.can_ever_admit(2**20)


def test_a_model_with_recurrent_state_is_refused_by_name(tmp_path: Path) -> None:
    folder = make_tiny_model(tmp_path / "mamba", "mamba", seed=1)
    with pytest.raises(ModelRefused, match="mamba has recurrent state"):
        ReferenceEngine.load(folder, dtype="float32", device="cpu", kv_bytes=2**20, threads=1)


def test_the_native_engine_names_the_backend_of_an_encoder_decoder(tmp_path: Path) -> None:
    folder = make_seq2seq_model(tmp_path / "t5", "t5")
    with pytest.raises(ModelRefused, match="unless the backend is `transformers`"):
        NativeEngine.load(folder, dtype="float32", device="cpu", kv_bytes=2**20, threads=1)
