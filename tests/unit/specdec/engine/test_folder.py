"""A broken model folder is refused with its path and the cause, before any slow loading."""

import json
from pathlib import Path

import pytest

from specdec.engine.folder import open_folder
from specdec.errors import ModelRefused


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    (tmp_path / "tokenizer.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(b"weights")
    return tmp_path


def test_a_whole_folder_is_opened(folder: Path) -> None:
    opened = open_folder(folder)
    assert opened.config == {"model_type": "llama"}
    assert opened.weights == (folder / "model.safetensors",)


def test_a_name_instead_of_a_folder_is_told_that_nothing_is_downloaded() -> None:
    with pytest.raises(ModelRefused, match=r"some-org/some-model does not exist; .* never downloaded"):
        open_folder(Path("some-org/some-model"))


@pytest.mark.parametrize(
    ("file", "told"),
    [
        ("config.json", "config.json is missing"),
        ("tokenizer.json", "no tokenizer"),
        ("model.safetensors", "no weights"),
    ],
)
def test_a_missing_file_is_named(folder: Path, file: str, told: str) -> None:
    (folder / file).unlink()
    with pytest.raises(ModelRefused, match=told) as refusal:
        open_folder(folder)
    assert str(folder) in refusal.value.message


@pytest.mark.parametrize(
    ("config", "told"),
    [
        ("{not json", "config.json cannot be read"),
        ("[]", "config.json is not a JSON object"),
        ("{}", "names no model_type"),
        ('{"model_type": "t5", "is_encoder_decoder": true}', "t5 is an encoder-decoder"),
    ],
)
def test_a_configuration_that_cannot_be_served_is_refused(folder: Path, config: str, told: str) -> None:
    (folder / "config.json").write_text(config)
    with pytest.raises(ModelRefused, match=told):
        open_folder(folder)


def test_a_missing_shard_is_named(folder: Path) -> None:
    shards = {"a": "one.safetensors", "b": "two.safetensors"}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": shards}))
    (folder / "one.safetensors").write_bytes(b"")
    with pytest.raises(ModelRefused, match=r"two\.safetensors is missing"):
        open_folder(folder)
    (folder / "two.safetensors").write_bytes(b"")
    assert [file.name for file in open_folder(folder).weights] == ["one.safetensors", "two.safetensors"]


@pytest.mark.parametrize("sharded", [False, True])
def test_pickles_are_refused_unless_they_are_allowed(folder: Path, sharded: bool) -> None:
    (folder / "model.safetensors").unlink()
    pickle = folder / "pytorch_model.bin"
    pickle.write_bytes(b"pickle")
    if sharded:
        (folder / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": {"a": pickle.name}}))
    with pytest.raises(ModelRefused, match=r"pickles \(pytorch_model\.bin\).*model\.allow_pickle"):
        open_folder(folder)
    assert open_folder(folder, allow_pickle=True).weights == (pickle,)


def test_safetensors_go_before_pickles(folder: Path) -> None:
    (folder / "pytorch_model.bin").write_bytes(b"pickle")
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": {"a": "pytorch_model.bin"}}))
    for allow_pickle in (False, True):
        assert open_folder(folder, allow_pickle=allow_pickle).weights == (folder / "model.safetensors",)


def test_the_fingerprint_is_the_content_not_the_place(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    copy = tmp_path_factory.mktemp("copy")
    for file in folder.iterdir():
        (copy / file.name).write_bytes(file.read_bytes())
    assert open_folder(folder).fingerprint("float32") == open_folder(copy).fingerprint("float32")


def test_the_fingerprint_changes_with_weights_configuration_and_dtype(folder: Path) -> None:
    seen = {open_folder(folder).fingerprint("float32"), open_folder(folder).fingerprint("bfloat16")}
    (folder / "model.safetensors").write_bytes(b"Weights")
    seen.add(open_folder(folder).fingerprint("float32"))
    (folder / "config.json").write_text('{"model_type": "llama", "rope_theta": 1}')
    seen.add(open_folder(folder).fingerprint("float32"))
    assert len(seen) == 4
