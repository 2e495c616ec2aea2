"""Every bad input gets one error that names its field, and the next request succeeds."""

import json
from typing import Any

import grpc
import httpx2
import pytest

from specdec.errors import RequestError
from specdec.protos.gateway.v1 import gateway_pb2, gateway_pb2_grpc
from specdec.serving.rpc.status import from_rpc_error
from tests.e2e.system import System

GOOD: dict[str, Any] = {"model": "demo", "prompt": "def f(", "max_tokens": 4}


def post(system: System, body: bytes | dict[str, Any], path: str = "/v1/completions") -> httpx2.Response:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return httpx2.post(system.http + path, content=content, headers={"Content-Type": "application/json"}, timeout=60)


@pytest.fixture(autouse=True)
def the_next_request_works(system: System) -> Any:
    yield
    assert post(system, GOOD).status_code == 200


@pytest.mark.parametrize(
    ("change", "status", "param", "code"),
    [
        ({"prompt": ""}, 400, "prompt", "invalid_value"),
        ({"prompt": []}, 400, "prompt", "invalid_value"),
        ({"prompt": None}, 400, "prompt", "invalid_value"),
        ({"prompt": "x = 1\n" * 5000}, 400, "prompt", "context_length_exceeded"),
        ({"max_tokens": -2}, 400, "max_tokens", "invalid_value"),
        ({"max_tokens": 0}, 400, "max_tokens", "invalid_value"),
        ({"temperature": -1}, 400, "temperature", "invalid_value"),
        ({"temperature": "hot"}, 400, "temperature", "invalid_value"),
        ({"top_p": -0.1}, 400, "top_p", "invalid_value"),
        ({"speculation": {"gamma": 1000}}, 400, "speculation.gamma", "invalid_value"),
        ({"speculation": {"gamma": -1}}, 400, "speculation.gamma", "invalid_value"),
        ({"speculation": {"lenience": 0}}, 400, "speculation.lenience", "invalid_value"),
        ({"speculation": {"mode": "block", "lenience": 0.5}}, 400, "speculation.lenience", "invalid_value"),
        ({"seed": 1, "speculation": {"lenience": 0.5}}, 400, "speculation.lenience", "invalid_value"),
        ({"logprobs": 21}, 400, "logprobs", "invalid_value"),
        ({"allowed_token_ids": []}, 400, "allowed_token_ids", "invalid_value"),
        ({"allowed_token_ids": [10**6]}, 400, "allowed_token_ids", "invalid_token"),
        ({"banned_token_ids": [-1]}, 400, "banned_token_ids", "invalid_token"),
        ({"banned_token_ids": list(range(2048))}, 400, "banned_token_ids", "invalid_value"),
        ({"allowed_token_ids": [5], "banned_token_ids": [5]}, 400, "allowed_token_ids", "invalid_value"),
        ({"speculation": {"mode": "magic"}}, 400, "speculation.mode", "invalid_value"),
        ({"speculation": {"gama": 3}}, 400, "speculation.gama", "unsupported_parameter"),
        ({"model": "no-such-model"}, 404, "model", "model_not_found"),
        ({"prompt": [1, 2, 10**6]}, 400, "prompt", "invalid_token"),
        ({"prompt": [1, -2]}, 400, "prompt", "invalid_token"),
        ({"logit_bias": {"1000000": 1}}, 400, "logit_bias", "invalid_token"),
        ({"temprature": 1}, 400, "temprature", "unsupported_parameter"),
        ({"n": 0}, 400, "n", "invalid_value"),
        ({"stop": [""]}, 400, "stop", "invalid_value"),
        ({"stop": ["a"] * 17}, 400, "stop", "invalid_value"),
    ],
)
def test_a_wrong_field_is_named(system: System, change: dict[str, Any], status: int, param: str, code: str) -> None:
    answer = post(system, GOOD | change)
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    assert (error["param"], error["code"]) == (param, code)
    assert error["message"]


@pytest.mark.parametrize(
    "body",
    [
        b'{"model": "demo", "prompt": "x", "temperature": NaN}',
        b'{"model": "demo", "prompt": "x", "temperature": Infinity}',
        b'{"model": "demo", "prompt": "\xff\xfe"}',
        b'{"model": "demo", "prompt": "trunc',
        b'["not", "an", "object"]',
        b"",
    ],
)
def test_a_body_that_is_not_json_is_400(system: System, body: bytes) -> None:
    answer = post(system, body)
    assert answer.status_code == 400, answer.text
    assert set(answer.json()["error"]) == {"message", "type", "param", "code"}


def test_a_body_over_the_limit_is_413(system: System) -> None:
    answer = post(system, GOOD | {"prompt": "x" * (64 * 2**20)})
    assert answer.status_code == 413
    assert answer.json()["error"]["code"] == "message_too_large"


@pytest.mark.parametrize("messages", [[], [{"role": "wizard", "content": "x"}], [{"role": "user"}], "hello"])
def test_wrong_messages_are_refused(system: System, messages: Any) -> None:
    answer = post(system, {"model": "demo", "messages": messages, "max_tokens": 4}, "/v1/chat/completions")
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"].startswith("messages")


def test_an_unknown_path_has_the_same_error_body(system: System) -> None:
    answer = httpx2.get(system.http + "/v1/nothing")
    assert answer.status_code == 404
    assert set(answer.json()["error"]) == {"message", "type", "param", "code"}


@pytest.mark.parametrize(
    ("request_", "code", "param"),
    [
        ({}, grpc.StatusCode.INVALID_ARGUMENT, "prompt"),
        ({"text": ""}, grpc.StatusCode.INVALID_ARGUMENT, "prompt"),
        ({"text": "x", "sampling": {"temperature": float("nan")}}, grpc.StatusCode.INVALID_ARGUMENT, "temperature"),
        ({"text": "x", "sampling": {"temperature": -1}}, grpc.StatusCode.INVALID_ARGUMENT, "temperature"),
        ({"text": "x", "speculation": {"gamma": 1000}}, grpc.StatusCode.INVALID_ARGUMENT, "speculation.gamma"),
        (
            {"text": "x", "speculation": {"lenience": 2.0}},
            grpc.StatusCode.INVALID_ARGUMENT,
            "speculation.lenience",
        ),
        ({"text": "x", "logprobs": 21}, grpc.StatusCode.INVALID_ARGUMENT, "logprobs"),
        (
            {"text": "x", "sampling": {"allowed_token_ids": [5], "banned_token_ids": [5]}},
            grpc.StatusCode.INVALID_ARGUMENT,
            "allowed_token_ids",
        ),
        (
            {"text": "x", "sampling": {"banned_token_ids": [10**6]}},
            grpc.StatusCode.INVALID_ARGUMENT,
            "banned_token_ids",
        ),
        ({"text": "x", "model": "no-such-model"}, grpc.StatusCode.NOT_FOUND, "model"),
        ({"tokens": {"token_ids": [10**6]}}, grpc.StatusCode.INVALID_ARGUMENT, "prompt"),
        ({"text": "x = 1\n" * 5000}, grpc.StatusCode.INVALID_ARGUMENT, "prompt"),
    ],
)
def test_grpc_refuses_the_same(system: System, request_: dict[str, Any], code: grpc.StatusCode, param: str) -> None:
    with grpc.insecure_channel(system.grpc) as channel, pytest.raises(grpc.RpcError) as caught:
        gateway_pb2_grpc.GenerationServiceStub(channel).Generate(gateway_pb2.GenerateRequest(**request_), timeout=30)
    assert caught.value.code() is code
    error = from_rpc_error(caught.value)
    assert isinstance(error, RequestError)
    assert error.param == param
