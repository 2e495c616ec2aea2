"""Objects match the published schemas of Kubernetes and of the operators' resources."""

import json
import shutil
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import kubernetes_validate
import pytest
from kubernetes_validate import utils

from tests.helm.engine import CHART, Manifest
from tests.helm.objects import of_kind

VERSIONS = [f"1.{minor}" for minor in range(30, 38)]
OPERATORS = ("keda.sh", "monitoring.coreos.com", "cert-manager.io", "gateway.networking.k8s.io")
VALIDATORS = CHART.parent / "build" / "crds"
NODE = shutil.which("node") if (VALIDATORS / ".installed").exists() else None
needs_validators = pytest.mark.skipif(not NODE, reason="no schemas: `make chart-tools`, where there is npm")


def _of_operators(manifest: Manifest) -> bool:
    return str(manifest["apiVersion"]).partition("/")[0] in OPERATORS


def _is_newer(manifest: Manifest) -> bool:
    return "'resourceClaims': " in str(manifest) or "'image': {" in str(manifest)


@pytest.fixture(scope="module", autouse=True)
def _each_schema_is_read_once() -> Iterator[None]:
    """Cache parsed schemas: the validator would read 2 MB again for every object."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("schema_contents", "all_versions"):
            patch.setattr(utils, name, cache(getattr(utils, name)))
        yield


@pytest.mark.parametrize("version", VERSIONS)
def test_objects_are_what_kubernetes_takes(objects: list[Manifest], version: str) -> None:
    core = [each for each in objects if not _of_operators(each)]
    if version == "1.30":  # has an older form of claims and no image volumes
        core = [each for each in core if not _is_newer(each)]
    assert len(core) > 10
    for each in core:
        kubernetes_validate.validate(each, version, strict=True)


def test_the_validator_sees_a_named_port_in_a_grpc_probe(default: list[Manifest]) -> None:
    drafter = json.loads(json.dumps(of_kind(default, "Deployment")[0]))
    drafter["spec"]["template"]["spec"]["containers"][0]["readinessProbe"]["grpc"]["port"] = "health"
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(drafter, "1.37", strict=True)


@needs_validators
def test_objects_are_what_the_operators_take(objects: list[Manifest]) -> None:
    theirs = [each for each in objects if _of_operators(each)]
    complaints = _validate(theirs)
    assert complaints == []


@needs_validators
def test_the_operators_validators_see_a_wrong_field(full: list[Manifest]) -> None:
    scaled = json.loads(json.dumps(of_kind(full, "ScaledObject")[0]))
    scaled["spec"]["minReplicaCount"] = "one"
    assert _validate([scaled])


def _validate(theirs: list[Manifest]) -> list[str]:
    assert NODE
    command = [NODE, str(Path(__file__).with_name("validate_crds.cjs")), str(VALIDATORS)]
    done = subprocess.run(command, input=json.dumps(theirs), capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    complaints: list[str] = json.loads(done.stdout)
    return complaints
