"""Loading of head checkpoints: both layouts, and refusals that name the option or the tensor."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from specdec.engine.heads.checkpoint import HeadTarget, load_head
from specdec.errors import ModelRefused
from tests.support.tiny_heads import HIDDEN, draft_ids, make_tiny_head

EMBEDDING = torch.randn(320, HIDDEN, generator=torch.Generator().manual_seed(3))


def target(rows: int = 320, hidden: int = HIDDEN, layers: int = 4) -> HeadTarget:
    """Return the facts of a target."""
    embed: Callable[[Tensor], Tensor] = lambda ids: EMBEDDING[ids]  # noqa: E731
    return HeadTarget(rows, hidden, layers, torch.float32, torch.device("cpu"), embed, lambda: EMBEDDING)


def edit_weights(folder: Path, change: Callable[[dict[str, Tensor]], object]) -> None:
    """Change the weights of a folder."""
    weights = load_file(folder / "model.safetensors")
    change(weights)
    save_file(weights, folder / "model.safetensors")


@pytest.mark.parametrize("layout", ["speculators", "eagle"])
def test_both_layouts_load_with_their_taps_and_ids(layout: Any, tmp_path: Path) -> None:
    head = load_head(make_tiny_head(tmp_path, layout, taps=(3, 0, 2)), target())
    assert head.taps == (3, 0, 2)
    assert head.ids is not None
    assert torch.equal(head.ids, draft_ids(100, 320))
    assert not any(each.requires_grad for each in head.parameters())


def test_taps_default_to_a_low_a_middle_and_a_high_layer(tmp_path: Path) -> None:
    folder = make_tiny_head(tmp_path, config={"eagle_aux_hidden_state_layer_ids": None})
    assert load_head(folder, target(layers=30)).taps == (2, 15, 27)


def test_a_missing_norm_before_residual_is_true_for_speculators_alone(tmp_path: Path) -> None:
    for layout, expected in (("speculators", True), ("eagle", False)):
        folder = make_tiny_head(tmp_path / layout, layout)  # type: ignore[arg-type]
        content = json.loads((folder / "config.json").read_text())
        del content["norm_before_residual"]
        (folder / "config.json").write_text(json.dumps(content))
        assert load_head(folder, target()).config.norm_before_residual is expected


def test_a_head_over_all_ids_may_share_the_targets_output_layer(tmp_path: Path) -> None:
    folder = make_tiny_head(tmp_path, draft_vocab=None)
    edit_weights(folder, lambda weights: weights.pop("lm_head.weight"))
    head = load_head(folder, target())
    assert head.ids is None
    assert torch.equal(head.lm_head.weight, EMBEDDING)


def test_a_head_may_bring_an_embedding(tmp_path: Path) -> None:
    folder = make_tiny_head(tmp_path, embedding=True)
    own = load_file(folder / "model.safetensors")["embed_tokens.weight"]
    assert torch.equal(load_head(folder, target()).embed(torch.tensor([5, 7])), own[[5, 7]])


def test_pickles_load_only_if_allowed(tmp_path: Path) -> None:
    folder = make_tiny_head(tmp_path, "eagle")
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    with pytest.raises(ModelRefused, match="allow_pickle"):
        load_head(folder, target())
    assert load_head(folder, target(), allow_pickle=True).ids is not None


REFUSED_OPTIONS = {
    "unknown flag": ("speculators", {"sandwich_norm": True}, "sandwich_norm"),
    "unknown flag of a flat configuration": ("eagle", {"logit_scale": 2.0}, "logit_scale"),
    "unknown flag within": ("eagle", {"eagle_config": {"sandwich_norm": 1}}, "eagle_config.sandwich_norm"),
    "other kind": ("speculators", {"speculators_model_type": "peagle"}, "speculators_model_type is peagle"),
    "other architecture": ("eagle", {"architectures": ["LlamaForCausalLM"]}, "architectures is LlamaForCausalLM"),
    "activation": ("eagle", {"hidden_act": "gelu"}, "hidden_act is gelu"),
    "layers": ("eagle", {"num_hidden_layers": 2}, "num_hidden_layers is 2"),
    "no flag": ("speculators", {"fc_norm": "yes"}, "fc_norm is 'yes'"),
    "target's size": ("eagle", {"target_hidden_size": 64}, "64 elements, this target has 32"),
    "rope": ("eagle", {"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}, "dynamic rotary"),
    "taps": ("speculators", {"eagle_aux_hidden_state_layer_ids": [1, 2, 9]}, "layer 9, this target has 4"),
    "number of taps": ("speculators", {"num_aux_hidden_states": 2}, "num_aux_hidden_states is 2"),
    "output ids": ("eagle", {"draft_vocab_size": 99}, "d2t and t2d"),
}


@pytest.mark.parametrize("case", REFUSED_OPTIONS)
def test_options_are_refused_by_name(case: str, tmp_path: Path) -> None:
    layout, config, message = REFUSED_OPTIONS[case]
    folder = make_tiny_head(tmp_path, layout, config=config)  # type: ignore[arg-type]
    with pytest.raises(ModelRefused, match=message):
        load_head(folder, target())


def as_absolute(weights: dict[str, Tensor]) -> None:
    weights["d2t"] = draft_ids(100, 320)


REFUSED_WEIGHTS: dict[str, tuple[Callable[[dict[str, Tensor]], object], str]] = {
    "no ids": (lambda weights: weights.pop("d2t"), "d2t is missing"),
    "absolute ids": (as_absolute, "d2t and t2d do not map"),
    "missing": (lambda weights: weights.pop("fc.weight"), "lack 1 tensors of the head, the first is fc.weight"),
    "unknown": (lambda weights: weights.update(extra=torch.zeros(1)), "tensor extra"),
    "shape": (lambda weights: weights.update({"fc.weight": torch.zeros(32, 64)}), "fc.weight is"),
}


@pytest.mark.parametrize("case", REFUSED_WEIGHTS)
def test_weights_are_refused_by_name(case: str, tmp_path: Path) -> None:
    change, message = REFUSED_WEIGHTS[case]
    folder = make_tiny_head(tmp_path)
    edit_weights(folder, change)
    with pytest.raises(ModelRefused, match=message):
        load_head(folder, target())


def test_a_head_of_another_target_is_refused(tmp_path: Path) -> None:
    folder = make_tiny_head(tmp_path)
    with pytest.raises(ModelRefused, match="a vocabulary of 320 ids, this target has 400"):
        load_head(folder, target(rows=400))
    with pytest.raises(ModelRefused, match="32 elements, this target has 64"):
        load_head(folder, target(hidden=64))
    with pytest.raises(ModelRefused, match="does not exist"):
        load_head(tmp_path / "none", target())
