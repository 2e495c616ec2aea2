"""Medusa heads of each layout guess from the target's last state, and wrong folders are refused by name."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoModelForCausalLM

from specdec.engine.batch import Chunk
from specdec.engine.heads.headed import HeadedEngine
from specdec.errors import ModelRefused
from tests.support.tiny_medusa import Layout, make_tiny_medusa, plain_logits
from tests.support.tiny_models import make_tiny_model
from tests.unit.specdec.engine.heads.head_scene import TOKENS, close

VARIANTS: dict[str, tuple[Layout, dict[str, Any]]] = {
    "Medusa": ("medusa", {}),
    "two layers": ("medusa", {"heads": 2, "layers": 2}),
    "vLLM": ("vllm", {"draft_vocab": 100}),
    "vLLM, shared output": ("vllm", {"shared": True}),
    "vLLM, shared output of some ids": ("vllm", {"shared": True, "draft_vocab": 64, "layers": 2}),
}
Law = Callable[[Sequence[int]], Tensor]
"""Returns the target's last state after tokens [hidden], by transformers."""


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("target"), layers=3)


@pytest.fixture(scope="module")
def model(target: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(target)


@pytest.fixture(scope="module")
def last_state(model: Any) -> Law:
    def of(tokens: Sequence[int]) -> Tensor:
        with torch.inference_mode():
            found: Tensor = model.base_model(torch.tensor([tokens])).last_hidden_state[0, -1]
        return found

    return of


def load(folder: Path, target: Path, **options: Any) -> HeadedEngine:
    given = {"dtype": "float32", "device": "cpu", "threads": None, **options}
    return HeadedEngine.load(folder, target, kv_bytes=2**20, wide_threads=None, **given)


def compute(engine: HeadedEngine, session: str, tokens: Sequence[int]) -> None:
    if not engine.length(session):
        engine.follow(session, 200, tokens)
    assert engine.reserve(session, engine.length(session) + len(tokens))
    engine.forward([Chunk(session, tokens, 1)])


def draft(engine: HeadedEngine, sessions: Sequence[str], tokens: Sequence[int]) -> Tensor:
    """Return the logits of all drafts of each sequence [B, heads, vocab]; the drafts themselves change nothing."""
    most = engine.head.most or 0
    assert all(engine.head.can_draft(session, most) for session in sessions)
    logits = [engine.head.begin(sessions, tokens)]
    for step in range(most - 1):
        logits.append(engine.head.extend(sessions, range(len(sessions)), [step] * len(sessions)))
    engine.head.finish(sessions)
    return torch.stack(logits, 1)


@pytest.mark.parametrize("variant", VARIANTS)
def test_each_head_guesses_from_the_last_state(
    variant: str, target: Path, tmp_path: Path, model: Any, last_state: Law
) -> None:
    layout, options = VARIANTS[variant]
    folder = make_tiny_medusa(tmp_path, layout, **options)
    engine = load(folder, target)
    shape = {"heads": options.get("heads", 3), "layers": options.get("layers", 1)}
    output = model.get_output_embeddings().weight.detach()
    assert engine.admit("a", 200)
    assert engine.admit("b", 200)
    compute(engine, "a", TOKENS[:9])
    compute(engine, "b", TOKENS[20:31])
    found = draft(engine, ["b", "a"], [TOKENS[31], TOKENS[9]])
    for place, tokens in enumerate((TOKENS[20:31], TOKENS[:9])):
        close(found[place], plain_logits(folder, layout, last_state(tokens), output, **shape))


def test_rejected_tokens_leave_no_state(target: Path, tmp_path: Path, model: Any, last_state: Law) -> None:
    folder = make_tiny_medusa(tmp_path)
    engine = load(folder, target)
    assert engine.admit("a", 200)
    compute(engine, "a", TOKENS[:12])
    draft(engine, ["a"], [TOKENS[12]])
    compute(engine, "a", [TOKENS[12], 5, 6])
    engine.truncate("a", 14)
    (found,) = draft(engine, ["a"], [200])
    output = model.get_output_embeddings().weight.detach()
    close(found, plain_logits(folder, "medusa", last_state([*TOKENS[:13], 5]), output, heads=3, layers=1))
    assert not engine.head.can_draft("a", 1)  # no pass since


def test_a_step_of_the_heads_is_measured(target: Path, tmp_path: Path) -> None:
    engine = load(make_tiny_medusa(tmp_path, heads=1), target)
    assert engine.head.step_seconds() > 0
    assert engine.head.memory.budget == 0


@pytest.mark.parametrize(
    ("layout", "options", "reason"),
    [
        ("vllm", {"config": {"hidden_size": 64}}, "for 64 elements of states, this target has 32"),
        ("vllm", {"vocab": 100}, "for 100 elements of ids, this target has 320"),
        ("medusa", {"config": {"medusa_num_heads": 0}}, "medusa_num_heads is 0"),
        ("medusa", {"config": {"medusa_num_heads": 2}}, "a tensor blocks.2.layers.0.bias"),
        ("medusa", {"config": {"medusa_num_layers": 2}}, "the weights lack 6 tensors"),
        ("medusa", {"config": {"medusa_choices": [[0]]}}, "the option medusa_choices"),
        ("vllm", {"draft_vocab": 4, "ids": torch.tensor([1, 1, 2, 3])}, "does not map 4 draft ids"),
        ("vllm", {"draft_vocab": 4, "ids": torch.tensor([1, 0, 2, 320])}, "does not map 4 draft ids"),
    ],
)
def test_wrong_folders_are_refused(
    layout: Layout, options: dict[str, Any], reason: str, target: Path, tmp_path: Path
) -> None:
    with pytest.raises(ModelRefused, match=reason):
        load(make_tiny_medusa(tmp_path, layout, **options), target)


def test_pickles_need_permission(target: Path, tmp_path: Path) -> None:
    make_tiny_medusa(tmp_path)
    weights = tmp_path / "medusa_lm_head.safetensors"
    torch.save(load_file(weights), tmp_path / "medusa_lm_head.pt")
    weights.unlink()
    with pytest.raises(ModelRefused, match=r"pickles \(medusa_lm_head\.pt\)"):
        load(tmp_path, target)
    assert load(tmp_path, target, allow_pickle=True).head.most == 3
