"""Helm installs, upgrades, rolls back and uninstalls the chart on a real API server, which stores every field."""

from collections.abc import Collection, Iterator
from contextlib import closing
from typing import Any

import pytest

from tests.helm.engine import CHART
from tests.kubernetes.api import Api, Object, resources
from tests.kubernetes.control_plane import ApiServer
from tests.kubernetes.older_chart import older_cases, older_values
from tests.kubernetes.release import Release

ANOTHER = {"speculation": {"gamma": 3}, "networkPolicy": {"enabled": False}}
"""Values that change the settings of processes and remove objects."""
BY_HELM = "sh.helm.release.v1."
"""Name prefix of the Secrets in which Helm stores its revisions."""


def _held(admin: Api, namespace: str) -> dict[str, dict[str, Object]]:
    """Return everything in a namespace except Helm's records: "Kind name" -> the object in each served version."""
    held: dict[str, dict[str, Object]] = {}
    for each in resources(admin):
        for item in admin.ask("GET", each.path(namespace))["items"] if "list" in each.verbs else ():
            name = item["metadata"]["name"]
            if not name.startswith(BY_HELM):  # items of a list do not name their kind
                item |= {"apiVersion": each.version, "kind": each.kind}
                held.setdefault(f"{each.kind} {name}", {})[each.version] = item
    return held


def _differences(sent: Any, kept: Any, path: str = "") -> Iterator[str]:
    """Yield the fields that differ from those sent to the server. Fields that the server adds do not count."""
    if isinstance(sent, dict) and isinstance(kept, dict):
        for key, value in sent.items():
            yield from _differences(value, kept.get(key), f"{path}.{key}")
    elif isinstance(sent, list) and isinstance(kept, list) and len(sent) == len(kept):
        for index, (one, other) in enumerate(zip(_by_name(sent), _by_name(kept), strict=True)):
            yield from _differences(one, other, f"{path}[{index}]")
    elif sent != kept and (sent or kept is not None):  # the server leaves out empty fields
        yield f"{path}: {sent!r} became {kept!r}"


def _by_name(items: list[Any]) -> list[Any]:
    """Sort lists merged by name: before 1.24 they keep the order of creation."""
    named = all(isinstance(item, dict) and "name" in item for item in items)
    return sorted(items, key=lambda item: str(item["name"])) if named else items


def _wrong(release: Release, admin: Api, namespace: str, kept: Collection[str] = ()) -> list[str]:
    """Return the sent objects that the server lacks or changed, and the objects that are neither sent nor in `kept`."""
    held = _held(admin, namespace)
    wrong = []
    for each in release.manifests():
        name = f"{each['kind']} {each['metadata']['name']}"
        stored = held.pop(name, {}).get(each["apiVersion"])
        wrong += [f"{name} {difference}" for difference in _differences(each, stored)]
    return wrong + [f"{name} belongs to no owner" for name in held if name not in kept]


def _kept(manifests: list[Object]) -> set[str]:
    """Return the objects that outlive the release."""
    kept = [
        each for each in manifests if each["metadata"].get("annotations", {}).get("helm.sh/resource-policy") == "keep"
    ]
    return {f"{each['kind']} {each['metadata']['name']}" for each in kept}


@pytest.mark.parametrize("case", older_cases())
def test_a_release_lives_and_leaves_nothing_behind(case: str, release: Release, admin: Api, namespace: str) -> None:
    values = older_values(case)
    release.install(values)
    first = release.manifests()
    assert _wrong(release, admin, namespace) == []

    release.upgrade({**values, **ANOTHER})
    assert release.manifests() != first
    assert _wrong(release, admin, namespace) == []

    release.rollback()
    assert release.manifests() == first
    assert _wrong(release, admin, namespace) == []
    assert release.history() == [(1, "superseded"), (2, "superseded"), (3, "deployed")]

    release.uninstall()
    assert _held(admin, namespace).keys() == _kept(first)


def test_a_cluster_that_is_too_old_is_refused(server: ApiServer, admin: Api, namespace: str) -> None:
    with (
        closing(Release(CHART, server.kubeconfig(server.admin, namespace), namespace)) as release,
        pytest.raises(Exception, match=r"chart requires kubeVersion: >=1\.30"),
    ):
        release.install(older_values("default"))
    assert _held(admin, namespace) == {}


@pytest.mark.parametrize("case", ["ratio-controller", "hpa"])
def test_an_upgrade_leaves_the_number_of_drafters_to_who_owns_it(
    case: str, release: Release, admin: Api, namespace: str
) -> None:
    scale = f"/apis/apps/v1/namespaces/{namespace}/deployments/prod-specdec-drafter/scale"
    values = older_values(case)
    release.install(values)
    admin.ask("PATCH", scale, {"spec": {"replicas": 5}})
    release.upgrade({**values, **ANOTHER})
    assert admin.ask("GET", scale)["spec"]["replicas"] == 5
    release.rollback()
    assert admin.ask("GET", scale)["spec"]["replicas"] == 5


def test_an_upgrade_that_is_refused_leaves_what_was(release: Release, admin: Api, namespace: str) -> None:
    values = older_values("default")
    release.install(values)
    before = release.manifests()
    with pytest.raises(Exception, match="gamma"):
        release.upgrade({**values, "speculation": {"gamma": 17}})
    assert release.history() == [(1, "deployed")]
    assert release.manifests() == before
    assert _wrong(release, admin, namespace) == []


def test_from_every_way_of_installing_an_upgrade_leads_to_the_next(
    release: Release, admin: Api, namespace: str
) -> None:
    # Server-side apply of 1.20 cannot turn a variable read from a Secret into a plain one, so these values come last.
    first, *rest = sorted(older_cases(), key=lambda case: "existingSecret" in str(older_values(case)["redis"]))
    release.install(older_values(first))
    kept = _kept(release.manifests())
    for case in rest:
        release.upgrade(older_values(case))
        kept |= _kept(release.manifests())
        assert _wrong(release, admin, namespace, kept) == [], case
    release.uninstall()
    assert _held(admin, namespace).keys() == kept


@pytest.mark.parametrize("case", ["hpa", "keda", "ratio-controller"])
def test_an_autoscaler_that_takes_over_keeps_a_number_set_by_hand(
    case: str, release: Release, admin: Api, namespace: str
) -> None:
    drafter = f"/apis/apps/v1/namespaces/{namespace}/deployments/prod-specdec-drafter"
    release.install({**older_values("default"), "drafter": {"replicas": 4}})
    admin.ask("PATCH", drafter, {"spec": {"replicas": 5}})
    release.upgrade(older_values(case))
    assert admin.ask("GET", drafter)["spec"]["replicas"] == 5


def test_a_number_that_was_set_by_hand_is_not_overwritten_silently(
    release: Release, admin: Api, namespace: str
) -> None:
    drafter = f"/apis/apps/v1/namespaces/{namespace}/deployments/prod-specdec-drafter"
    release.install(older_values("hpa"))
    admin.ask("PATCH", drafter, {"spec": {"replicas": 5}})
    with pytest.raises(Exception, match=r"conflict with .*: \.spec\.replicas"):
        release.upgrade({**older_values("default"), "drafter": {"replicas": 4}})
    assert admin.ask("GET", drafter)["spec"]["replicas"] == 5
