"""A head over a subset of ids gives the whole head's logits and drafts no other id. A broken file is refused."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from drafter_service.drafters.model_drafter import ModelDrafter
from specdec.engine import Chunk, NativeEngine
from specdec.engine.draft_head import FIELD, DraftHead, save_head
from specdec.errors import ModelRefused
from specdec.rules.proposal import propose
from specdec.rules.speculation import Mode
from specdec.sampling.distribution import History, probabilities
from specdec.sampling.params import SamplingParams
from tests.support.tiny_models import make_tiny_model

IDS = torch.tensor([0, 3, 4, 7, 11])


def folder(tmp_path: Path, ids: torch.Tensor | None) -> Path:
    path = tmp_path / ("plain" if ids is None else "restricted")
    make_tiny_model(path)
    if ids is not None:
        config = json.loads((path / "config.json").read_text())
        (path / "config.json").write_text(json.dumps({**config, FIELD: save_head(path, ids)}))
    return path


def engine(path: Path) -> NativeEngine:
    return NativeEngine.load(path, dtype="float32", device="cpu", kv_bytes=2**20, threads=None)


def logits(loaded: NativeEngine) -> torch.Tensor:
    loaded.admit("a", 8)
    loaded.reserve("a", 8)
    return loaded.forward([Chunk("a", [1, 2, 5], logits=2)])


def test_the_head_computes_the_logits_of_its_ids_and_no_others(tmp_path: Path) -> None:
    whole, some = logits(engine(folder(tmp_path, None))), logits(engine(folder(tmp_path, IDS)))
    assert some.shape == whole.shape
    assert torch.allclose(some[:, IDS], whole[:, IDS], atol=1e-5)
    others = torch.ones(whole.shape[-1], dtype=torch.bool).index_fill(0, IDS, value=False)
    assert bool((some[:, others] == torch.finfo(torch.float32).min).all())


def test_other_engines_find_the_model_s_weights_alone(tmp_path: Path) -> None:
    path = folder(tmp_path, IDS)
    assert [each.name for each in path.glob("*.safetensors")] == ["model.safetensors"]


def test_q_lives_on_the_ids_at_every_temperature(tmp_path: Path) -> None:
    rows = logits(engine(folder(tmp_path, IDS)))
    for temperature in (0.0, 0.3, 1.0, 2.0):
        q = probabilities(rows, [SamplingParams(temperature=temperature)] * 2, [History()] * 2)
        assert q[:, IDS].sum(-1).tolist() == pytest.approx([1.0, 1.0])
        tokens, laws = propose(Mode.REJECTION, q, [1, 2], [3, 3], 64)
        assert set(tokens) <= set(IDS.tolist())
        assert all(set(law.ids.tolist()) <= set(IDS.tolist()) for law in laws)


def test_a_mask_without_any_of_the_ids_still_leaves_a_distribution(tmp_path: Path) -> None:
    rows = logits(engine(folder(tmp_path, IDS)))
    params = SamplingParams(allowed_token_ids=(5, 6))
    q = probabilities(rows, [params] * 2, [History()] * 2)
    assert q[:, [5, 6]].tolist() == [[0.5, 0.5]] * 2


def test_a_drafter_with_such_a_head_measures_itself(tmp_path: Path) -> None:
    drafter = ModelDrafter("small", engine(folder(tmp_path, IDS)), support=64)
    assert drafter.info.step_seconds > 0


@pytest.mark.parametrize("ids", [[], [3, 3], [4, 2], [-1, 2], [0, 10**6]], ids=str)
def test_ids_that_are_not_the_models_are_refused(tmp_path: Path, ids: list[int]) -> None:
    with pytest.raises(ModelRefused, match="ascending order"):
        engine(folder(tmp_path, torch.tensor(ids, dtype=torch.int64)))


def test_a_missing_or_foreign_file_is_refused(tmp_path: Path) -> None:
    path = folder(tmp_path, IDS)
    save_file({"other": IDS}, path / "draft_head.ids")
    with pytest.raises(ModelRefused, match="cannot be read"):
        engine(path)
    (path / "draft_head.ids").unlink()
    with pytest.raises(ModelRefused, match="cannot be read"):
        engine(path)


@pytest.mark.parametrize("bias", [False, True])
def test_the_head_keeps_dtype_and_bias(bias: bool) -> None:
    whole = torch.nn.Linear(4, 12, bias=bias, dtype=torch.bfloat16)
    states = torch.randn(1, 2, 4, dtype=torch.bfloat16)
    assert torch.equal(DraftHead(whole, IDS)(states)[..., IDS], whole(states)[..., IDS])
