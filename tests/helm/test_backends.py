"""Verifiers on vLLM: their configuration and their pods."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.helm.cases import values_of
from tests.helm.engine import CHART, ChartRefused, Helm, Manifest, manifests
from tests.helm.objects import config, pods
from verifier_service.config import VerifierSettings

REDIS: dict[str, Any] = {"redis": {"external": {"url": "redis://redis:6379/0"}}, "tls": {"enabled": False}}


@pytest.fixture(scope="module")
def split(helm: Helm) -> list[Manifest]:
    return manifests(helm.render(CHART, values_of("vllm")))


def _container(objects: list[Manifest]) -> dict[str, Any]:
    container: dict[str, Any] = pods(objects)["verifier"]["spec"]["containers"][0]
    return container


def test_the_verifier_accepts_what_it_reads(split: list[Manifest], tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(config(split, "verifier")), encoding="utf-8")
    settings = VerifierSettings.load(path)
    assert settings.backend == "vllm"
    assert settings.vllm.engine_args == {
        "tensor_parallel_size": 2,
        "quantization": "fp8",
        "gpu_memory_utilization": 0.85,
    }


def test_a_split_target_has_its_accelerators_and_shared_memory(split: list[Manifest]) -> None:
    container = _container(split)
    assert container["resources"]["limits"]["nvidia.com/gpu"] == "2"
    assert {"name": "shared-memory", "mountPath": "/dev/shm"} in container["volumeMounts"]
    assert {"name": "shared-memory", "emptyDir": {"medium": "Memory"}} in pods(split)["verifier"]["spec"]["volumes"]


def test_the_image_is_that_of_the_backend_unless_the_values_name_one(helm: Helm, split: list[Manifest]) -> None:
    assert _container(split)["image"].startswith("specdec/verifier-vllm:")
    own = {**REDIS, "verifier": {"backend": "vllm", "image": {"repository": "team/verifier"}}}
    assert _container(manifests(helm.render(CHART, own)))["image"].startswith("team/verifier:")


def test_the_native_engine_stays_the_default(helm: Helm) -> None:
    objects = manifests(helm.render(CHART, REDIS))
    assert config(objects, "verifier")["backend"] == "native"
    assert "vllm" not in config(objects, "verifier")
    assert _container(objects)["image"].startswith("specdec/verifier:")
    assert all(mount["name"] != "shared-memory" for mount in _container(objects)["volumeMounts"])


@pytest.mark.parametrize(
    ("verifier", "message"),
    [
        ({"tensorParallelSize": 2}, "The native engine uses one accelerator"),
        ({"backend": "vllm", "tensorParallelSize": 2, "gpu": {"enabled": True, "count": 4}}, "set verifier.gpu.count"),
        ({"backend": "sglang"}, "backend"),
        ({"tensorParallelSize": 0}, "tensorParallelSize"),
    ],
)
def test_what_cannot_be_is_refused(helm: Helm, verifier: dict[str, Any], message: str) -> None:
    with pytest.raises(ChartRefused, match=message):
        helm.render(CHART, {**REDIS, "verifier": verifier})
