"""Adapters of the target: arguments of vLLM's engine, fingerprints, and settings that are refused."""

import json
from pathlib import Path
from typing import Any

import pytest

from specdec.errors import ConfigError
from verifier_service.config import VerifierSettings, VllmSettings
from verifier_service.vllm.adapters import adapters_of
from verifier_service.vllm.engine import engine_arguments


def adapter(folder: Path, rank: Any = 4, weights: bytes = b"weights") -> Path:
    folder.mkdir()
    (folder / "adapter_config.json").write_text(json.dumps({"r": rank}))
    (folder / "adapter_model.safetensors").write_bytes(weights)
    return folder


def settings(backend: str = "vllm", **vllm: Any) -> VerifierSettings:
    return VerifierSettings.load(overrides={"model": {"path": "m"}, "backend": backend, "vllm": vllm})


def test_an_adapter_has_room_for_every_sequences_longest_draft(tmp_path: Path) -> None:
    folder = adapter(tmp_path / "a")
    for given in (settings(lora=folder), settings(lora_modules={"sql": folder})):
        made = engine_arguments(given, on_cpu=True)
        assert (made["enable_lora"], made["max_loras"], made["max_lora_rank"]) == (True, 2, 8)
        rows = made["speculative_config"]["num_speculative_tokens"] + 1
        assert made["max_num_batched_tokens"] >= max(2048, made["max_num_seqs"] * rows)
    assert VllmSettings().lora is None


def test_with_adapters_too_the_numbers_of_the_caller_hold(tmp_path: Path) -> None:
    given = {"max_num_seqs": 8, "max_num_batched_tokens": 512, "max_lora_rank": 16}
    made = engine_arguments(settings(lora=adapter(tmp_path / "a"), engine_args=given), on_cpu=True)
    assert (made["max_num_seqs"], made["max_num_batched_tokens"], made["max_lora_rank"]) == (8, 512, 16)


@pytest.mark.parametrize("on_cpu", [True, False])
def test_every_adapter_has_a_slot_and_the_greatest_rank_fits(on_cpu: bool, tmp_path: Path) -> None:
    folders = {str(rank): adapter(tmp_path / str(rank), rank) for rank in (2, 33, 8)}
    made = engine_arguments(settings(lora_modules=folders), on_cpu=on_cpu)
    assert (made["max_loras"], made["max_lora_rank"]) == (4 if on_cpu else 3, 64)
    assert "enable_lora" not in engine_arguments(settings(), on_cpu=True)


@pytest.mark.parametrize("rank", [None, "x", {}])
def test_a_folder_without_an_adapter_is_named(rank: Any, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"vllm\.lora_modules\.sql: .*a has no adapter_config\.json with a rank"):
        engine_arguments(settings(lora_modules={"sql": adapter(tmp_path / "a", rank)}), on_cpu=True)
    with pytest.raises(ConfigError, match=r"vllm\.lora: missing has no adapter_config\.json"):
        engine_arguments(settings(lora=Path("missing")), on_cpu=True)


@pytest.mark.parametrize(
    ("backend", "values", "error"),
    [
        (
            "vllm",
            {"lora": "a", "lora_modules": {"sql": "b"}},
            "lora_modules: `lora` gives every generation",
        ),
        ("vllm", {"lora_modules": {"": "b"}}, "lora_modules"),
        ("vllm", {"lora_modules": {"sql": "b"}, "engine_args": {"kv_transfer_config": {}}}, "may mix the blocks"),
        ("vllm", {"engine_args": {"max_loras": 1}}, "'max_loras' cannot be given here"),
        ("native", {"lora_modules": {"sql": "b"}}, "vllm.lora_modules: the backend native serves no adapters"),
        ("transformers", {"lora": "b"}, "vllm.lora: the backend transformers serves no adapters"),
    ],
)
def test_adapters_that_cannot_be_served_are_refused(backend: str, values: dict[str, Any], error: str) -> None:
    with pytest.raises(ConfigError, match=error):
        settings(backend, **values)


def test_a_fingerprint_is_of_the_model_the_name_and_the_content(tmp_path: Path) -> None:
    def made(name: str, folder: Path, model: str = "model") -> str:
        (only,) = adapters_of(settings(lora_modules={name: folder}), model)
        assert only.name == name
        return only.system_fingerprint

    one = adapter(tmp_path / "one")
    others = {
        made("law", one),
        made("sql", one, "other"),
        made("sql", adapter(tmp_path / "rank", 8)),
        made("sql", adapter(tmp_path / "weights", weights=b"others")),
        "model",
    }
    assert made("sql", one) == made("sql", adapter(tmp_path / "copy"))
    assert len({made("sql", one), *others}) == 6
