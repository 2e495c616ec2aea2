"""An engine with a head drafts like a plain head over the target's own states, however its sequences are computed."""

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor

from specdec.engine.batch import Chunk
from specdec.engine.cpu.compiled_function import CompiledFunction
from specdec.engine.heads import sequences
from specdec.engine.heads.eagle3 import Eagle3Head
from specdec.engine.native import NativeEngine
from tests.support.tiny_heads import draft_ids
from tests.support.tiny_models import make_tiny_model
from tests.unit.specdec.engine.heads.head_scene import TOKENS, VARIANTS, Scene, close, states_of


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("target"), layers=4)


@pytest.fixture(scope="module")
def plain(target: Path) -> Callable[[Sequence[int]], Tensor]:
    """Return a function from tokens to the tapped states by transformers [n, taps · hidden]."""
    return states_of(target)


@pytest.mark.parametrize("variant", VARIANTS)
def test_drafts_follow_from_the_targets_states(variant: str, target: Path, tmp_path: Path, plain: Callable) -> None:
    scene = Scene(target, tmp_path, variant)
    scene.open("a")
    scene.compute(("a", TOKENS[:20]))
    scene.compute(("a", TOKENS[20:30]))
    (found,) = scene.draft(["a"], TOKENS[30:31], [[5, 6]])
    close(found, scene.head.drafted(plain(TOKENS[:30]), TOKENS[:31], [5, 6]))
    allowed = torch.zeros(320, dtype=torch.bool).index_fill_(0, draft_ids(100, 320), True)
    assert torch.equal(found.isfinite(), allowed.expand(3, -1))


@pytest.mark.skipif(shutil.which("c++") is None, reason="there is no C++ compiler")
@pytest.mark.filterwarnings("ignore::DeprecationWarning:torch")  # PyTorch's compiler uses deprecated PyTorch calls
def test_a_compiled_head_drafts_the_same(target: Path, tmp_path: Path, plain: Callable) -> None:
    scene, others = Scene(target, tmp_path, "fc_norm, norm_output"), TOKENS[::-1]
    head = scene.engine.head._head
    assert isinstance(head, Eagle3Head)
    head.compile()
    assert isinstance(head.forward, CompiledFunction)
    scene.open("a")
    scene.open("b", others)
    for end in (9, 10, 14):  # one state, several, and two sequences in a pass
        scene.compute(("a", TOKENS[scene.engine.length("a") : end]), ("b", others[scene.engine.length("b") : end]))
        for drafting in (["a"], ["b"]) if end < 14 else (["a", "b"],):
            tokens = {"a": TOKENS[: end + 1], "b": others[: end + 1]}
            found = scene.draft(drafting, [tokens[name][-1] for name in drafting], [[1, 2]] * len(drafting))
            for name, logits in zip(drafting, found, strict=True):
                close(logits, scene.head.drafted(plain(tokens[name][:-1]), tokens[name], [1, 2]))


def test_rejected_drafts_leave_nothing(target: Path, tmp_path: Path, plain: Callable) -> None:
    scene = Scene(target, tmp_path)
    scene.open("a")
    scene.compute(("a", TOKENS[:12]))
    scene.draft(["a"], TOKENS[12:13], [[5, 6, 7]])
    scene.compute(("a", [TOKENS[12], 5, 6, 7]))
    scene.engine.truncate("a", 14)
    tokens = [*TOKENS[:13], 5, 200]
    (found,) = scene.draft(["a"], [200], [[9]])
    close(found, scene.head.drafted(plain(tokens[:14]), tokens, [9]))


def test_sequences_of_one_pass_do_not_mix(target: Path, tmp_path: Path, plain: Callable) -> None:
    scene = Scene(target, tmp_path)
    others = TOKENS[::-1]
    scene.open("a")
    scene.open("plain", [3, *TOKENS], follow=False)
    scene.open("b", others)
    scene.compute(("a", TOKENS[:9]), ("plain", [3, 4]), ("b", others[:4]))
    scene.compute(("b", others[4:11]), ("plain", [5]), ("a", TOKENS[9:10]))
    found = scene.draft(["b", "a"], [others[11], TOKENS[10]], [[1], [2]])
    close(found[0], scene.head.drafted(plain(others[:11]), others[:12], [1]))
    close(found[1], scene.head.drafted(plain(TOKENS[:10]), TOKENS[:11], [2]))


@pytest.mark.parametrize(("most", "unread"), [(2**20, 170), (80 * 3 * 32 * 4, 80 + 17)])
def test_unread_states_wait_for_a_draft_or_until_they_take_much_memory(
    most: int, unread: int, target: Path, tmp_path: Path, plain: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sequences, "_MOST_BYTES", most)
    scene, long = Scene(target, tmp_path), [TOKENS[index % 60] for index in range(180)]
    scene.open("a", long)
    lengths = []
    for start in range(0, 170, 17):
        scene.compute(("a", long[start : start + 17]))
        lengths.append(len(scene.engine.head._pending["a"]))
        assert (scene.engine.head.unread("a") >= 64) is (lengths[-1] >= 64)
    assert unread - 17 < max(lengths) <= unread
    (found,) = scene.draft(["a"], long[170:171], [[1]])
    close(found, scene.head.drafted(plain(long[:170]), long[:171], [1]))
    assert scene.engine.head.unread("a") < 64


@pytest.mark.parametrize(("most", "unread"), [(2**20, 170), (40 * 3 * 32 * 4, 63 + 17)])
def test_a_head_that_has_not_drafted_for_long_reads_the_last_states_only(
    most: int, unread: int, target: Path, tmp_path: Path, plain: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sequences, "_MOST_BYTES", most)
    scene, long = Scene(target, tmp_path), [TOKENS[index % 60] for index in range(180)]
    scene.open("other")
    for token in TOKENS[:33]:
        scene.compute(("other", [token]))
    long[0], kv, lengths = 5, scene.engine.head._kv, []
    scene.open("a", long)
    for start in range(0, 170, 17):
        scene.compute(("a", long[start : start + 17]))
        lengths.append(len(scene.engine.head._pending["a"]))
        assert kv.end("a") == kv._first["a"], "no state was read"
    assert max(lengths) == unread
    (found,) = scene.draft(["a"], long[170:171], [[1]])
    first = kv._first["a"]
    assert first == 170 - 63
    close(found, scene.head.drafted(plain(long[:170])[first:], long[first:171], [1]))
    scene.compute(("a", long[170:175]))
    (found,) = scene.draft(["a"], long[175:176], [[1]])
    close(found, scene.head.drafted(plain(long[:175])[first:], long[first:176], [1]))
    scene.engine.release("a")
    scene.open("b", long)
    assert kv._first["b"] == scene.engine.length("b") > first, "slots that saw only a part of the tokens are not reused"


def test_a_sequence_with_known_tokens_reuses_the_heads_slots(target: Path, tmp_path: Path, plain: Callable) -> None:
    scene = Scene(target, tmp_path)
    scene.open("a")
    scene.compute(("a", TOKENS[:50]))
    scene.draft(["a"], TOKENS[50:51], [[5]])
    scene.engine.release("a")
    tokens = [*TOKENS[:45], 1, 2, 3]
    known = scene.open("b", tokens)
    assert known >= 32
    assert scene.engine.head._kv.end("b") == known
    assert scene.engine.head._kv._first["b"] == 0
    scene.compute(("b", tokens[known:47]))
    (found,) = scene.draft(["b"], tokens[47:48], [[5]])
    close(found, scene.head.drafted(plain(tokens[:47]), tokens, [5]))


def test_slots_of_another_first_token_are_not_reused(target: Path, tmp_path: Path, plain: Callable) -> None:
    scene, tokens = Scene(target, tmp_path), [9, *TOKENS[1:]]
    scene.open("a")
    scene.compute(("a", TOKENS[:50]))
    scene.draft(["a"], TOKENS[50:51], [[5]])
    assert scene.open("b", tokens) == 0
    scene.compute(("b", tokens[:50]))
    (found,) = scene.draft(["b"], tokens[50:51], [[5]])
    close(found, scene.head.drafted(plain(tokens[:50]), tokens[:51], [5]))


def test_without_the_heads_slots_a_sequence_begins_late(target: Path, tmp_path: Path) -> None:
    scene = Scene(target, tmp_path)
    scene.open("a", follow=False)
    scene.compute(("a", TOKENS[:50]))
    scene.engine.release("a")
    known = scene.open("b", TOKENS)
    assert scene.engine.head._kv._first["b"] == known == 48
    scene.compute(("b", TOKENS[known:50]))
    (found,) = scene.draft(["b"], TOKENS[50:51], [[5]])
    assert found.isfinite().any()
    scene.engine.release("b")
    assert scene.engine.head._kv.memory.live == scene.engine.head._kv.memory.cached == 0
    scene.open("c", TOKENS)  # slots that saw only a part of the tokens are not reused
    assert scene.engine.head._kv._first["c"] == 48


def test_a_sequence_without_memory_for_the_head_goes_on(target: Path, tmp_path: Path) -> None:
    scene = Scene(target, tmp_path)
    page = scene.engine.head._kv._pool._store.page_tokens
    taken = 0
    while scene.engine.head._kv.open(f"other {taken}", page, [taken, *range(page - 1)], "", 0):
        assert scene.engine.head._kv.reserve(f"other {taken}", page)
        taken += 1
    scene.open("a")
    assert "a" not in scene.engine.head._kv
    scene.compute(("a", TOKENS[:20]))
    assert not scene.engine.head.can_draft("a", 1)


def test_the_logits_are_those_of_an_engine_without_head(target: Path, tmp_path: Path) -> None:
    scene = Scene(target, tmp_path)
    other = NativeEngine.load(target, dtype="float32", device="cpu", threads=None, kv_bytes=2**20)
    scene.open("a")
    assert other.admit("a", 200, TOKENS)
    assert other.reserve("a", 20)
    assert torch.equal(scene.compute(("a", TOKENS[:20])), other.forward([Chunk("a", TOKENS[:20], 1)]))
    assert scene.engine.memory.budget <= 2**20
