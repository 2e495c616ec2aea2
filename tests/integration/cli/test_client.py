"""`specdec run` and `compare` with a minimal gateway: values, JSON, and one line for each failure."""

import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, HTTPServer

import grpc
import pytest
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_status import rpc_status

from specdec.cli.app import status_of
from specdec.cli.exit_codes import ExitCode
from specdec.errors import ContextLengthExceeded, NoVerifier, SpecdecError
from specdec.protos.common.v1 import common_pb2
from specdec.protos.gateway.v1 import gateway_pb2, gateway_pb2_grpc
from specdec.serving.rpc.status import rich_status
from specdec.serving.version import package_version

pytestmark = pytest.mark.integration

Capture = pytest.CaptureFixture[str]


class StandIn(gateway_pb2_grpc.GenerationServiceServicer):
    """A gateway that sends two rounds, one with a rejected draft and one plain, or the given error."""

    def __init__(self) -> None:
        self.asked: list[gateway_pb2.GenerateRequest] = []
        self.error: SpecdecError | None = None
        self.breaks = False

    def StreamGenerate(
        self, request: gateway_pb2.StreamGenerateRequest, context: grpc.ServicerContext
    ) -> Iterator[gateway_pb2.StreamGenerateResponse]:
        self.asked.append(request.request)
        if self.error:
            context.abort_with_status(rpc_status.to_status(rich_status(self.error)))
        started = gateway_pb2.Started(id="g1", model="demo", seed=request.request.sampling.seed)
        yield gateway_pb2.StreamGenerateResponse(started=started)
        yield gateway_pb2.StreamGenerateResponse(round=first_round())
        if self.breaks:
            context.abort(grpc.StatusCode.INTERNAL, "it broke")
        plain = gateway_pb2.CommittedToken(id=3, text="!", origin=common_pb2.TOKEN_ORIGIN_PLAIN)
        yield gateway_pb2.StreamGenerateResponse(round=gateway_pb2.Round(tokens=[plain]))
        yield gateway_pb2.StreamGenerateResponse(finished=finished(request.request.speculation))


def first_round() -> gateway_pb2.Round:
    tokens = [
        gateway_pb2.CommittedToken(id=1, text="yes", origin=common_pb2.TOKEN_ORIGIN_ACCEPTED),
        gateway_pb2.CommittedToken(id=2, text=" no", origin=common_pb2.TOKEN_ORIGIN_RECOVERED),
    ]
    return gateway_pb2.Round(tokens=tokens, rejected=[gateway_pb2.RejectedToken(id=9, text=" maybe")])


def finished(asked: gateway_pb2.SpeculationOptions) -> gateway_pb2.Finished:
    drafted = 0 if asked.mode == common_pb2.VERIFICATION_MODE_OFF else 2
    return gateway_pb2.Finished(
        finish_reason=common_pb2.FINISH_REASON_LENGTH,
        usage=gateway_pb2.Usage(prompt_tokens=4, completion_tokens=3),
        speculation=gateway_pb2.SpeculationSummary(
            num_spec_steps=1,
            num_plain_steps=1,
            num_draft_tokens=drafted,
            num_accepted_draft_tokens=drafted // 2,
            lossy=asked.HasField("lenience"),
        ),
    )


@pytest.fixture
def gateway() -> Iterator[tuple[StandIn, Callable[..., int]]]:
    servicer = StandIn()
    server = grpc.server(ThreadPoolExecutor(max_workers=1))
    gateway_pb2_grpc.add_GenerationServiceServicer_to_server(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield servicer, lambda *arguments: status_of([*arguments, "--address", f"127.0.0.1:{port}"])
    server.stop(None).wait()


def test_tokens_are_marked_by_origin_with_a_legend_and_statistics(
    gateway: tuple[StandIn, Callable[..., int]], capsys: Capture
) -> None:
    assert gateway[1]("run", "hello") == ExitCode.OK
    legend, text, statistics = capsys.readouterr().out.splitlines()
    assert "[accepted]" in legend
    assert text == "[yes]{ no}!"
    assert statistics.startswith("3 tok · ")
    assert statistics.endswith("1.5 tok/round · 50 % accepted")


def test_rejected_drafts_are_shown_on_request(gateway: tuple[StandIn, Callable[..., int]], capsys: Capture) -> None:
    gateway[1]("run", "hello", "--show-draft")
    assert "[yes]~ maybe~{ no}!" in capsys.readouterr().out


def test_options_reach_the_gateway_and_what_is_not_given_stays_unset(
    gateway: tuple[StandIn, Callable[..., int]],
) -> None:
    servicer, specdec = gateway
    specdec("run", "hello", "--seed", "0", "--temperature", "0", "--gamma", "0", "--mode", "block", "--max-tokens", "5")
    specdec("run", "hello", "--no-speculation")
    full, bare = servicer.asked
    assert full.text == "hello"
    assert (full.sampling.HasField("seed"), full.sampling.HasField("temperature")) == (True, True)
    assert (full.speculation.HasField("gamma"), full.speculation.mode) == (True, common_pb2.VERIFICATION_MODE_BLOCK)
    assert full.stop.max_tokens == 5
    assert not full.sampling.HasField("top_p")
    assert not full.speculation.HasField("lenience")
    assert not any(bare.sampling.HasField(name) for name in ("seed", "temperature", "top_p"))
    assert bare.speculation.mode == common_pb2.VERIFICATION_MODE_OFF


def test_lenience_reaches_the_gateway_and_its_answer_is_called_lossy(
    gateway: tuple[StandIn, Callable[..., int]], capsys: Capture
) -> None:
    gateway[1]("run", "hello", "--mode", "rejection", "--lenience", "0.5")
    assert gateway[0].asked[0].speculation.lenience == 0.5
    assert capsys.readouterr().out.splitlines()[-1].endswith("50 % accepted · lossy")


def test_json_is_one_document(gateway: tuple[StandIn, Callable[..., int]], capsys: Capture) -> None:
    gateway[1]("run", "hello", "--json")
    found = json.loads(capsys.readouterr().out)
    assert [token["id"] for token in found["tokens"]] == [1, 2, 3]
    assert found["finish_reason"] == "length"
    assert found["speculation"]["accepted_share"] == 0.5


def test_compare_reports_both_ways(gateway: tuple[StandIn, Callable[..., int]], capsys: Capture) -> None:
    assert gateway[1]("compare", "hello", "--json", "--runs", "2") == ExitCode.OK
    found = json.loads(capsys.readouterr().out)
    assert found["identical"] is True
    assert found["plain"]["accepted_share"] is None
    assert found["speculative"]["accepted_share"] == 0.5


def test_compare_shows_a_table(gateway: tuple[StandIn, Callable[..., int]], capsys: Capture) -> None:
    gateway[1]("compare", "hello")
    shown = capsys.readouterr().out
    assert all(word in shown for word in ("without drafts", "with drafts", "tokens/s", "tokens/round", "identical"))


@pytest.mark.parametrize(
    ("error", "code"),
    [(ContextLengthExceeded("too long", "prompt"), ExitCode.USAGE), (NoVerifier("none is ready"), ExitCode.FAILED)],
)
def test_what_the_gateway_refuses_is_its_own_line(
    gateway: tuple[StandIn, Callable[..., int]], error: SpecdecError, code: ExitCode, capsys: Capture
) -> None:
    gateway[0].error = error
    assert gateway[1]("run", "hello") == code
    assert capsys.readouterr().err == f"error: {error.message}\n"


def test_a_stream_that_breaks_keeps_what_it_showed(
    gateway: tuple[StandIn, Callable[..., int]], capsys: Capture
) -> None:
    gateway[0].breaks = True
    assert gateway[1]("run", "hello") == ExitCode.FAILED
    captured = capsys.readouterr()
    assert captured.out.endswith("[yes]{ no}\n")
    assert "it broke" in captured.err


def test_nobody_there_is_one_line_and_3(capsys: Capture) -> None:
    assert status_of(["run", "hello", "--address", "127.0.0.1:1"]) == ExitCode.UNREACHABLE
    error = capsys.readouterr().err
    assert "127.0.0.1:1" in error
    assert error.count("\n") == 1


def test_gamma_can_be_left_to_the_verifier(gateway: tuple[StandIn, Callable[..., int]]) -> None:
    servicer, specdec = gateway
    for given, sent in (("3", True), ("auto", False)):
        assert specdec("run", "x", "--gamma", given) == ExitCode.OK
        assert servicer.asked[-1].speculation.HasField("gamma") is sent


@pytest.mark.parametrize(("options", "says"), [(("--gamma", "many"), "one of auto"), (("--address", "x"), "host:port")])
def test_an_option_that_cannot_be_read_is_named(capsys: Capture, options: tuple[str, str], says: str) -> None:
    assert status_of(["run", "x", *options]) == ExitCode.USAGE
    assert says in capsys.readouterr().err


def test_the_version_is_the_packages(capsys: Capture) -> None:
    assert status_of(["--version"]) == ExitCode.OK
    assert capsys.readouterr().out == f"specdec {package_version()}\n"


def test_the_address_of_another_service_is_named(capsys: Capture) -> None:
    server = grpc.server(ThreadPoolExecutor(max_workers=1))
    servicer = health.HealthServicer()
    servicer.set("specdec.verifier.v1.VerifierService", health_pb2.HealthCheckResponse.SERVING)
    health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    assert status_of(["run", "x", "--address", str(port)]) == ExitCode.USAGE
    server.stop(None).wait()
    assert f"127.0.0.1:{port} is a verifier's: give the address of the gateway" in capsys.readouterr().err


def test_an_address_that_speaks_http_is_named(capsys: Capture) -> None:
    with HTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        assert status_of(["run", "x", "--address", str(server.server_port)]) == ExitCode.USAGE
        server.shutdown()
    assert "speaks HTTP, not gRPC" in capsys.readouterr().err
