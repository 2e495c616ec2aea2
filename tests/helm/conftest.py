"""The chart, rendered once for each file of values in ci/."""

from functools import cache
from pathlib import Path

import pytest

from tests.helm.cases import CASES, values_of
from tests.helm.engine import CHART, Helm, Manifest, find_helm, manifests


@cache
def _texts(helm: Helm, case: str) -> dict[str, str]:
    return helm.render(CHART, values_of(case))


@cache
def _objects(helm: Helm, case: str) -> list[Manifest]:
    return manifests(_texts(helm, case))


@pytest.fixture(scope="session")
def helm() -> Helm:
    """The Helm engine."""
    found = find_helm()
    if found is None:
        pytest.skip("neither helm-python-sdk nor a helm on PATH")
    return found


@pytest.fixture(scope="session")
def package(helm: Helm, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The chart as a package, as it is released."""
    return helm.package(CHART, tmp_path_factory.mktemp("package"))


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest) -> str:
    """Name of a file in ci/."""
    name: str = request.param
    return name


@pytest.fixture
def objects(helm: Helm, case: str) -> list[Manifest]:
    """All objects that this case installs."""
    return _objects(helm, case)


@pytest.fixture(scope="session")
def full(helm: Helm) -> list[Manifest]:
    """Objects of the case with every feature enabled."""
    return _objects(helm, "full")


@pytest.fixture(scope="session")
def default(helm: Helm) -> list[Manifest]:
    """Objects of the smallest case."""
    return _objects(helm, "default")
