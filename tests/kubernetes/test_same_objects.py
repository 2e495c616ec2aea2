"""The fake API server stores objects as the real one does, in everything that the clients depend on."""

import pytest

from tests.fake_kubernetes.slices import pod, slice_of
from tests.kubernetes.api import Object
from tests.kubernetes.worlds import World, refused

RULES = [
    {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get", "list"], "resourceNames": ["a"]},
    {"apiGroups": ["apps"], "resources": ["deployments/scale"], "verbs": ["get"]},
]


def _deployment(replicas: int) -> Object:
    container = {"name": "one", "image": "none"}
    template = {"metadata": {"labels": {"app": "a"}}, "spec": {"containers": [container]}}
    spec = {"replicas": replicas, "selector": {"matchLabels": {"app": "a"}}, "template": template}
    return {"metadata": {"name": "a", "annotations": {"kept": "yes"}}, "spec": spec}


class TestObjects:
    """Single objects."""

    def test_what_is_not_there_is_not_found(self, world: World) -> None:
        for method, body in (("GET", None), ("PATCH", Object()), ("DELETE", None)):
            assert refused(world.api, method, f"{world.slices}/none", body) == (404, "NotFound")

    def test_what_is_there_is_not_created_again(self, world: World) -> None:
        made = world.api.ask("POST", world.slices, slice_of("a", pod(1)))
        assert made["metadata"]["namespace"] == world.namespace
        assert refused(world.api, "POST", world.slices, slice_of("a")) == (409, "AlreadyExists")
        assert world.api.ask("GET", f"{world.slices}/a") == made

    def test_an_update_of_an_old_version_is_a_conflict_and_changes_nothing(self, world: World) -> None:
        old = world.api.ask("POST", world.slices, slice_of("a", pod(1)))
        new = world.api.ask("PUT", f"{world.slices}/a", old | {"endpoints": [pod(2)]})
        assert new["metadata"]["resourceVersion"] != old["metadata"]["resourceVersion"]
        assert refused(world.api, "PUT", f"{world.slices}/a", old | {"endpoints": []}) == (409, "Conflict")
        assert world.api.ask("GET", f"{world.slices}/a") == new

    def test_an_update_that_changes_nothing_makes_no_version(self, world: World) -> None:
        made = world.api.ask("POST", world.slices, slice_of("a", pod(1)))
        assert world.api.ask("PUT", f"{world.slices}/a", made) == made
        assert world.api.ask("PATCH", f"{world.slices}/a", {"addressType": "IPv4"}) == made

    def test_a_patch_merges_removes_by_null_and_replaces_lists(self, world: World) -> None:
        world.api.ask("POST", world.slices, slice_of("a", pod(1), pod(2)))
        patch = {"metadata": {"labels": {"more": "yes"}}, "endpoints": [pod(3)], "ports": None}
        patched = world.api.ask("PATCH", f"{world.slices}/a", patch)
        assert patched["metadata"]["labels"].keys() == {"kubernetes.io/service-name", "more"}
        assert patched["endpoints"] == [pod(3)]
        assert "ports" not in patched

    def test_a_patch_of_an_old_version_is_a_conflict(self, world: World) -> None:
        version = world.api.ask("POST", world.slices, slice_of("a", pod(1)))["metadata"]["resourceVersion"]
        patch = {"metadata": {"resourceVersion": version}, "endpoints": [pod(2)]}
        world.api.ask("PATCH", f"{world.slices}/a", patch)
        again = patch | {"endpoints": []}
        assert refused(world.api, "PATCH", f"{world.slices}/a", again) == (409, "Conflict")

    def test_what_is_deleted_is_gone(self, world: World) -> None:
        world.api.ask("POST", world.slices, slice_of("a"))
        assert world.api.ask("DELETE", f"{world.slices}/a")["status"] == "Success"
        assert refused(world.api, "GET", f"{world.slices}/a") == (404, "NotFound")


class TestScale:
    """The scale subresource."""

    @pytest.fixture
    def path(self, world: World) -> str:
        world.api.ask("POST", world.path("apps/v1", "deployments"), _deployment(2))
        return world.path("apps/v1", "deployments", "a")

    def test_it_is_the_deployments_replicas_and_version(self, world: World, path: str) -> None:
        scale, behind = world.api.ask("GET", f"{path}/scale"), world.api.ask("GET", path)
        assert (scale["apiVersion"], scale["kind"], scale["spec"]) == ("autoscaling/v1", "Scale", {"replicas": 2})
        assert scale["metadata"]["resourceVersion"] == behind["metadata"]["resourceVersion"]
        assert "annotations" not in scale["metadata"]

    def test_a_patch_changes_the_replicas_and_nothing_else(self, world: World, path: str) -> None:
        before = world.api.ask("GET", path)
        scale = world.api.ask("PATCH", f"{path}/scale", {"spec": {"replicas": 5}})
        after = world.api.ask("GET", path)
        assert scale["spec"]["replicas"] == 5
        assert scale["metadata"]["resourceVersion"] == after["metadata"]["resourceVersion"]
        assert after["spec"] == before["spec"] | {"replicas": 5}
        assert after["metadata"]["annotations"] == {"kept": "yes"}

    def test_a_patch_of_an_old_version_is_a_conflict(self, world: World, path: str) -> None:
        version = world.api.ask("GET", f"{path}/scale")["metadata"]["resourceVersion"]
        world.api.ask("PATCH", path, {"metadata": {"annotations": {"another": "writer"}}})
        patch = {"metadata": {"resourceVersion": version}, "spec": {"replicas": 5}}
        assert refused(world.api, "PATCH", f"{path}/scale", patch) == (409, "Conflict")

    def test_of_nobody_there_is_none(self, world: World) -> None:
        path = world.path("apps/v1", "deployments", "none/scale")
        assert refused(world.api, "GET", path) == (404, "NotFound")
        assert refused(world.api, "PATCH", path, {"spec": {"replicas": 1}}) == (404, "NotFound")


class TestAccess:
    """Rights of a Role."""

    def test_rules_with_names_cover_those_and_no_collection(self, world: World) -> None:
        maps = world.path("v1", "configmaps")
        for name in "ab":
            world.api.ask("POST", maps, {"metadata": {"name": name}})
        api = world.limited(RULES)
        assert api.ask("GET", f"{maps}/a")["metadata"]["name"] == "a"
        for method, path in (("GET", f"{maps}/b"), ("GET", maps), ("DELETE", f"{maps}/a")):
            assert refused(api, method, path) == (403, "Forbidden")
        assert refused(api, "POST", maps, {"metadata": {"name": "c"}}) == (403, "Forbidden")

    def test_a_subresource_is_a_resource_of_its_own(self, world: World) -> None:
        path = world.path("apps/v1", "deployments", "a")
        world.api.ask("POST", world.path("apps/v1", "deployments"), _deployment(2))
        api = world.limited(RULES)
        assert api.ask("GET", f"{path}/scale")["spec"]["replicas"] == 2
        assert refused(api, "GET", path) == (403, "Forbidden")
        assert refused(api, "PATCH", f"{path}/scale", {"spec": {"replicas": 1}}) == (403, "Forbidden")
