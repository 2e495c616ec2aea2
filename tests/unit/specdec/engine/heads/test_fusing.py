"""An engine that fuses for a drafter keeps the features of judged tokens, each once, however they are computed."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from specdec.engine.batch import Chunk
from specdec.engine.heads.fusing import FusingEngine
from tests.support.tiny_heads import HIDDEN, Options, PlainHead, make_tiny_head
from tests.support.tiny_models import make_tiny_model
from tests.unit.specdec.engine.heads.head_scene import TAPS, TOKENS, close, states_of

OPTIONS = Options(fc_norm=True)
ROW = 4 * HIDDEN


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Return a target and its head."""
    root = tmp_path_factory.mktemp("fusing")
    head = make_tiny_head(root / "head", options=OPTIONS, taps=TAPS)
    return make_tiny_model(root / "target", layers=4), head


def load(folders: tuple[Path, Path], most: int = 100) -> FusingEngine:
    target, head = folders
    given = {"kv_bytes": 2**20, "wide_threads": None, "dtype": "float32", "device": "cpu", "threads": None}
    return FusingEngine.load(head, target, most_bytes=most * ROW, **given)


def expected(folders: tuple[Path, Path], tokens: list[int]) -> Tensor:
    target, head = folders
    return PlainHead(head, OPTIONS, torch.empty(0))._fused(states_of(target)(tokens))


def begin(engine: FusingEngine, name: str, tokens: list[int], *, follow: bool = True) -> int:
    assert engine.admit(name, 100, tokens)
    if follow:
        engine.follow(name, 100, tokens)
    return engine.length(name)


def compute(engine: FusingEngine, *parts: tuple[str, list[int]]) -> Tensor:
    for name, tokens in parts:
        assert engine.reserve(name, engine.length(name) + len(tokens))
    return engine.forward([Chunk(name, tokens, 1) for name, tokens in parts])


def taken(engine: FusingEngine, name: str) -> tuple[int, Tensor]:
    found = engine.take(name)
    assert found is not None
    return found


def test_features_are_the_fused_states_of_each_sequence(folders: tuple[Path, Path]) -> None:
    engine, others = load(folders), TOKENS[::-1]
    begin(engine, "a", TOKENS)
    begin(engine, "plain", others, follow=False)
    begin(engine, "b", others)
    compute(engine, ("a", TOKENS[:7]), ("plain", others[:3]), ("b", others[:9]))
    compute(engine, ("b", others[9:10]), ("a", TOKENS[7:12]))
    for name, tokens in (("a", TOKENS[:12]), ("b", others[:10])):
        found = taken(engine, name)
        assert found[0] == 0
        close(found[1], expected(folders, tokens))
        assert engine.take(name) is None
    assert engine.take("plain") is None


def test_a_rejected_draft_has_no_feature(folders: tuple[Path, Path]) -> None:
    engine = load(folders)
    begin(engine, "a", TOKENS)
    compute(engine, ("a", TOKENS[:12]))
    engine.take("a")
    compute(engine, ("a", [TOKENS[12], 5, 6, 7]))
    engine.truncate("a", 14)
    found = taken(engine, "a")
    assert found[0] == 12
    close(found[1], expected(folders, [*TOKENS[:13], 5])[12:])


def test_a_sequence_with_known_tokens_begins_after_them(folders: tuple[Path, Path]) -> None:
    engine = load(folders)
    begin(engine, "a", TOKENS)
    compute(engine, ("a", TOKENS[:50]))
    engine.release("a")
    known = begin(engine, "a", TOKENS)
    assert known > 0
    compute(engine, ("a", TOKENS[known:55]))
    found = taken(engine, "a")
    assert found[0] == known
    close(found[1], expected(folders, TOKENS[:55])[known:])


def test_the_last_states_of_a_prompt_are_kept(folders: tuple[Path, Path]) -> None:
    engine = load(folders, most=20)
    begin(engine, "a", TOKENS)
    for start in range(0, 48, 12):
        compute(engine, ("a", TOKENS[start : start + 12]))
    found = taken(engine, "a")
    assert found[0] == 28
    close(found[1], expected(folders, TOKENS[:48])[28:])
