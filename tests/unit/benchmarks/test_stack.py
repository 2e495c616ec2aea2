"""Measurement of the load on a whole system in a steady state."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest

from benchmarks.run import Ask
from benchmarks.systems.stack import Stack
from benchmarks.systems.steady import BURSTS, rate
from specdec.protos.gateway.v1 import gateway_pb2 as pb
from specdec.serving.rpc.checksum import encoder

PACE = 0.01
"""Seconds per token."""


class Gateway:
    """A gateway that generates one token per round, or refuses requests."""

    def __init__(self, refuses: int = 0) -> None:
        self.asked = list[tuple[int, int]]()
        """Seed and tokens of each request."""
        self._refuses = refuses

    def generate(
        self, request: pb.StreamGenerateRequest, context: grpc.ServicerContext
    ) -> Iterator[pb.StreamGenerateResponse]:
        asked = request.request
        self.asked.append((asked.sampling.seed, asked.stop.max_tokens))
        if asked.stop.max_tokens == self._refuses:
            context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "full")
        for _ in range(asked.stop.max_tokens):
            time.sleep(PACE)
            yield pb.StreamGenerateResponse(round=pb.Round(tokens=[pb.CommittedToken(id=1)]))


@contextmanager
def serving(gateway: Gateway) -> Iterator[Stack]:
    server = grpc.server(ThreadPoolExecutor(8))
    sealed = encoder(pb.StreamGenerateResponse.SerializeToString)
    method = grpc.unary_stream_rpc_method_handler(gateway.generate, pb.StreamGenerateRequest.FromString, sealed)
    service = grpc.method_handlers_generic_handler("specdec.gateway.v1.GenerationService", {"StreamGenerate": method})
    server.add_generic_rpc_handlers((service,))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield Stack(f"127.0.0.1:{port}", {}, {}, Path())
    finally:
        server.stop(None).wait()


def test_every_client_asks_for_its_next_answer_until_the_time_is_over() -> None:
    gateway = Gateway()
    with serving(gateway) as stack:
        rate = stack.steady([Ask((1,), 4, seed=seed) for seed in range(6)], 2, 1.0)
    assert 0 < rate <= sum(tokens for _, tokens in gateway.asked)
    for client, first in enumerate((2, 4)):
        asked = [(seed, tokens) for seed, tokens in gateway.asked if seed % 2 == client]
        assert asked[0] == (client, first)
        assert asked[1:4] == [(client + 2, 4), (client + 4, 4), (client, 4)]


def test_bursts_come_beside_the_clients_once_all_have_had_a_token() -> None:
    gateway = Gateway()
    with serving(gateway) as stack:
        stack.steady([Ask((1,), 1000)], 1, BURSTS, [Ask((1,), 3, seed=seed) for seed in (7, 8)])
    assert gateway.asked[0] == (0, 1000)
    assert sorted(gateway.asked[1:3]) == [(7, 3), (8, 3)]


def test_it_does_not_matter_whether_a_slice_ends_before_or_after_a_pass() -> None:
    passes = [0.1 * number + 0.001 * place for number in range(20) for place in range(16)]
    before, after = ([at for at in passes if at < end] for end in (1.49, 1.51 + 0.02))
    assert len(after) - len(before) == 16
    assert rate(before, 1.5) == pytest.approx(160.0, rel=0.01)
    assert rate(after, 1.5) == pytest.approx(160.0, rel=0.01)
    assert rate([0.1, 0.2], 0.5) == 4.0


def test_a_refused_client_ends_the_measurement() -> None:
    with serving(Gateway(refuses=4)) as stack, pytest.raises(ExceptionGroup) as failure:
        stack.steady([Ask((1,), 8, seed=seed) for seed in range(2)], 2, 60.0)
    assert failure.group_contains(grpc.aio.AioRpcError, match="full")
