"""The fake API server reports changes as the real one does, in everything that the clients depend on."""

from tests.fake_kubernetes.slices import pod, slice_of
from tests.kubernetes.worlds import World


class TestLists:
    """Lists of collections."""

    def test_selectors_choose(self, world: World) -> None:
        for name, service in (("a", "one"), ("b", "two"), ("c", "three")):
            world.api.ask("POST", world.slices, slice_of(name, service=service))
        for selector, names in {"in (one,two)": "ab", "=three": "c", "in (four)": ""}.items():
            chosen = f"kubernetes.io/service-name {selector}".replace(" =", "=")
            listed = world.api.ask("GET", world.slices, None, labelSelector=chosen)
            assert "".join(sorted(item["metadata"]["name"] for item in listed["items"])) == names

    def test_a_list_is_as_of_a_version_that_rises(self, world: World) -> None:
        before = world.version()
        made = world.api.ask("POST", world.slices, slice_of("a"))
        assert int(before) < int(made["metadata"]["resourceVersion"]) <= int(world.version())


class TestWatches:
    """Watch events."""

    def test_changes_after_the_version_come_in_order(self, world: World) -> None:
        world.api.ask("POST", world.slices, slice_of("before"))
        version = world.version()
        world.api.ask("POST", world.slices, slice_of("a", pod(1)))
        world.api.ask("PATCH", f"{world.slices}/a", {"endpoints": [pod(2)]})
        world.api.ask("DELETE", f"{world.slices}/before")
        expected = [("ADDED", "a"), ("MODIFIED", "a"), ("DELETED", "before")]
        assert world.events(3, version) == expected

    def test_a_deletion_tells_the_last_state_under_a_version_of_its_own(self, world: World) -> None:
        made = world.api.ask("POST", world.slices, slice_of("a", pod(1)))
        world.api.ask("DELETE", f"{world.slices}/a")
        with world.api.watch(world.slices, made["metadata"]["resourceVersion"], 5) as events:
            event = next(events)
        assert event["type"] == "DELETED"
        assert event["object"]["endpoints"] == [pod(1)]
        assert int(event["object"]["metadata"]["resourceVersion"]) > int(made["metadata"]["resourceVersion"])

    def test_a_change_while_the_watch_is_open_comes_through_it(self, world: World) -> None:
        with world.api.watch(world.slices, world.version(), 10) as events:
            world.api.ask("POST", world.slices, slice_of("a"))
            assert next(events)["type"] == "ADDED"

    def test_the_server_ends_a_watch_in_good_order(self, world: World) -> None:
        with world.api.watch(world.slices, world.version(), 1) as events:
            assert list(events) == []

    def test_bookmarks_tell_the_version_of_what_was_not_selected(self, world: World) -> None:
        chosen = {"labelSelector": "kubernetes.io/service-name=two", "allowWatchBookmarks": "True"}
        with world.api.watch(world.slices, world.version(), 6, **chosen) as events:
            made = world.api.ask("POST", world.slices, slice_of("a", service="one"))
            *_, last = told = list(events)
        assert {event["type"] for event in told} == {"BOOKMARK"}
        assert int(last["object"]["metadata"]["resourceVersion"]) >= int(made["metadata"]["resourceVersion"])

    def test_only_what_is_selected_is_told(self, world: World) -> None:
        version = world.version()
        for name, service in (("a", "one"), ("b", "two"), ("c", "one")):
            world.api.ask("POST", world.slices, slice_of(name, service=service))
        told = world.events(2, version, labelSelector="kubernetes.io/service-name=one")
        assert told == [("ADDED", "a"), ("ADDED", "c")]

    def test_newly_selected_objects_are_added_and_deselected_ones_deleted(self, world: World) -> None:
        world.api.ask("POST", world.slices, slice_of("a", service="two"))
        version = world.version()
        for service in ("one", "two"):
            labels = {"kubernetes.io/service-name": service}
            world.api.ask("PATCH", f"{world.slices}/a", {"metadata": {"labels": labels}})
        told = world.events(2, version, labelSelector="kubernetes.io/service-name=one")
        assert told == [("ADDED", "a"), ("DELETED", "a")]

    def test_a_version_that_is_compacted_away_is_an_error_in_the_stream(self, world: World) -> None:
        version = world.version()
        for name in "abc":
            world.api.ask("POST", world.slices, slice_of(name))
        world.compact()
        with world.unbuffered.watch(world.slices, version, 5) as events:
            event, *more = events
        assert not more
        assert event["type"] == "ERROR"
        assert (event["object"]["code"], event["object"]["reason"]) == (410, "Expired")

    def test_the_last_version_is_never_compacted_away(self, world: World) -> None:
        world.api.ask("POST", world.slices, slice_of("a"))
        version = world.version()
        world.compact()
        world.api.ask("POST", world.slices, slice_of("b"))
        assert world.events(1, version) == [("ADDED", "b")]
