"""Arguments of vLLM's engine, and when two verifiers serve the same model."""

from pathlib import Path
from typing import Any

import pytest

from specdec.engine.loader import ModelFacts
from specdec.errors import ConfigError
from tests.support.tiny_heads import make_tiny_head
from tests.support.tiny_models import make_tiny_model
from verifier_service.config import VerifierSettings
from verifier_service.vllm import engine
from verifier_service.vllm.head.states import TAPS

FACTS = ModelFacts("m", 8, 64, frozenset({1}), "tokenizer", "folder")


def settings(lora: Path | None = None, **engine_args: Any) -> VerifierSettings:
    values = {"model": {"path": "m"}, "backend": "vllm", "vllm": {"engine_args": engine_args, "lora": lora}}
    return VerifierSettings.load(overrides=values)


def test_arguments_pass_through_and_ours_stay() -> None:
    made = engine.engine_arguments(settings(tensor_parallel_size=2, quantization="fp8"), on_cpu=False)
    assert (made["tensor_parallel_size"], made["quantization"]) == (2, "fp8")
    assert made["speculative_config"]["num_speculative_tokens"] == 16
    assert made["worker_cls"] == "verifier_service.vllm.worker.JudgingWorker"
    assert "enforce_eager" not in made


def test_the_budget_of_kv_is_the_verifiers_unless_a_share_is_given() -> None:
    assert engine.engine_arguments(settings(), on_cpu=True)["kv_cache_memory_bytes"] == 2**30
    assert "kv_cache_memory_bytes" not in engine.engine_arguments(settings(gpu_memory_utilization=0.8), on_cpu=False)


def test_a_connector_of_the_settings_replaces_ours() -> None:
    ours = engine.engine_arguments(settings(), on_cpu=True)["kv_transfer_config"]
    assert ours["kv_connector_module_path"] == "verifier_service.vllm.kv_connector"
    given = {"kv_connector": "ExampleConnector", "kv_role": "kv_both"}
    made = engine.engine_arguments(settings(kv_transfer_config=given), on_cpu=True)
    assert made["kv_transfer_config"] == given


def test_a_head_has_its_layers_tapped_and_its_share_of_kv(tmp_path: Path) -> None:
    target = make_tiny_model(tmp_path / "target", layers=3)
    head = make_tiny_head(tmp_path / "head", taps=(2, 1, 1))
    values = {"model": {"path": target}, "backend": "vllm", "head": head, "kv_bytes": 4000}
    given = {"additional_config": {"mine": 1, TAPS: "theirs"}}
    made = engine.engine_arguments(
        VerifierSettings.load(overrides=values | {"vllm": {"engine_args": given}}), on_cpu=True
    )
    assert made["additional_config"] == {"mine": 1, TAPS: (2, 1, 1)}
    assert made["kv_cache_memory_bytes"] == 3000
    assert "additional_config" not in engine.engine_arguments(settings(), on_cpu=True)


@pytest.mark.parametrize("name", ["worker_cls", "speculative_config", "model", "pipeline_parallel_size"])
def test_an_argument_that_is_the_verifiers_own_is_refused_by_name(name: str) -> None:
    with pytest.raises(ConfigError, match=f"vllm.engine_args: '{name}' cannot be given here"):
        settings(**{name: 1})


def test_an_unknown_argument_is_refused_with_the_one_that_was_meant() -> None:
    with pytest.raises(ConfigError, match="'quantisation', did you mean 'quantization'"):
        engine._check_names({"quantisation": "fp8"}, ["quantization", "model"])


def test_the_fingerprint_is_the_folder_s_while_arguments_keep_the_model() -> None:
    assert engine.fingerprint(FACTS, settings(tensor_parallel_size=4, max_num_seqs=8)) == "folder"


def made_of(folder: Path, on_cpu: bool = True, products: str = "operator", **more: Any) -> dict[str, Any]:
    dtype, quantization = more.pop("dtype", "float32"), more.pop("engine_args", {})
    model = {"path": str(folder), "dtype": dtype, "products": products}
    values = {"model": model, "backend": "vllm", "vllm": {"engine_args": quantization}}
    return engine.engine_arguments(VerifierSettings.load(overrides=values), on_cpu=on_cpu)


def test_on_a_cpu_the_operator_of_native_multiplies_in_float32(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    assert made_of(tmp_path)["quantization"] == engine.PACKED
    assert "quantization" not in made_of(tmp_path, on_cpu=False)
    assert "quantization" not in made_of(tmp_path, products="torch")
    assert "quantization" not in made_of(tmp_path, dtype="bfloat16")


def test_weights_that_are_quantized_are_left_to_vllm(tmp_path: Path) -> None:
    assert made_of(tmp_path, engine_args={"quantization": "fp8"})["quantization"] == "fp8"
    for config in ('{"quantization_config": {}}', '{"text_config": {"quantization_config": {}}}'):
        (tmp_path / "config.json").write_text(config)
        assert "quantization" not in made_of(tmp_path)


def test_what_changes_the_model_changes_the_fingerprint() -> None:
    found = {
        engine.fingerprint(FACTS, made)
        for made in (settings(), settings(quantization="fp8"), settings(quantization="awq"), settings(lora=Path("a")))
    }
    assert len(found) == 4
