"""Endpoints read from EndpointSlices."""

from gateway.discovery.sources import endpoints_of
from specdec.serving.discovery import Endpoint
from tests.fake_kubernetes.slices import pod, slice_of


def test_a_ready_pod_is_an_endpoint_with_its_uid() -> None:
    assert endpoints_of([slice_of("a", pod(1))], "grpc") == (Endpoint("10.0.0.1:50053", "uid-1"),)


def test_a_pod_that_is_not_ready_is_nobody() -> None:
    assert endpoints_of([slice_of("a", pod(1, ready=False, serving=False))], "grpc") == ()
    assert endpoints_of([slice_of("a", pod(1, ready=False, serving=True))], "grpc") == ()


def test_a_pod_that_serves_while_it_terminates_is_draining() -> None:
    found = endpoints_of([slice_of("a", pod(1, ready=False, serving=True, terminating=True))], "grpc")
    assert found == (Endpoint("10.0.0.1:50053", "uid-1", draining=True),)
    assert endpoints_of([slice_of("a", pod(1, ready=False, serving=False, terminating=True))], "grpc") == ()


def test_conditions_that_are_not_known_count_as_ready() -> None:
    silent = pod(1) | {"conditions": {}}
    assert endpoints_of([slice_of("a", silent)], "grpc") == (Endpoint("10.0.0.1:50053", "uid-1"),)


def test_a_pod_with_two_address_families_is_one_endpoint() -> None:
    six = pod(1) | {"addresses": ["fd00::1"]}
    both = [slice_of("six", six, addressType="IPv6"), slice_of("four", pod(1))]
    assert endpoints_of(both, "grpc") == (Endpoint("10.0.0.1:50053", "uid-1"),)
    assert endpoints_of(both[:1], "grpc") == (Endpoint("[fd00::1]:50053", "uid-1"),)


def test_of_two_slices_that_disagree_the_terminating_one_is_believed() -> None:
    going = pod(1, ready=False, serving=True, terminating=True)
    for order in ([pod(1), going], [going, pod(1)]):
        found = endpoints_of([slice_of(name, item) for name, item in zip("ab", order, strict=True)], "grpc")
        assert found == (Endpoint("10.0.0.1:50053", "uid-1", draining=True),)


def test_a_pod_that_moves_to_another_slice_is_ready_when_one_says_so() -> None:
    behind = pod(1, ready=False, serving=False)
    assert endpoints_of([slice_of("a", behind), slice_of("b", pod(1))], "grpc") == (
        Endpoint("10.0.0.1:50053", "uid-1"),
    )


def test_a_slice_without_the_port_has_no_endpoints() -> None:
    assert endpoints_of([slice_of("a", pod(1)), slice_of("b", endpoints=None)], "metrics") == ()
