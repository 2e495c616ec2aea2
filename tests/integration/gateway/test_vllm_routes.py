"""Routes of vLLM's clients beyond completions: health, version, tokens, counters; and CORS for web pages."""

from typing import Any

import httpx2
import pytest

from specdec.serving.version import package_version
from tests.integration.gateway.stage import Stage, stage
from tests.support.gateway_fakes import Script

GOOD: dict[str, Any] = {"model": "bytes", "prompt": "Say it", "max_tokens": 50}
PAGE = "https://app.example"


async def test_health_is_told_by_the_status_alone(here: Stage) -> None:
    async with httpx2.AsyncClient(base_url=here.url) as client:
        for method, path in (("GET", "/health"), ("GET", "/ping"), ("POST", "/ping"), ("HEAD", "/health")):
            answer = await client.request(method, path)
            assert (answer.status_code, answer.content) == (200, b"")
        here.store.down = True
        assert (await client.get("/health")).status_code == 503


async def test_the_version_is_the_packages(here: Stage) -> None:
    async with httpx2.AsyncClient(base_url=here.url) as client:
        assert (await client.get("/version")).json() == {"version": package_version()}


@pytest.mark.parametrize("root", ["", "/v1"])
async def test_tokens_are_shown_in_vllms_shape(here: Stage, root: str) -> None:
    async with httpx2.AsyncClient(base_url=here.url) as client:
        body = {"model": "bytes", "prompt": "Say", "add_special_tokens": True, "return_token_strs": True}
        answer = (await client.post(f"{root}/tokenize", json=body)).json()
        assert answer == {"tokens": [*b"Say"], "count": 3, "max_model_len": 256, "token_strs": ["S", "a", "y"]}
        assert (await client.post(f"{root}/detokenize", json={"tokens": [*b"Say"]})).json() == {"prompt": "Say"}


async def test_head_is_answered_where_get_is(here: Stage) -> None:
    async with httpx2.AsyncClient(base_url=here.url) as client:
        described = (await client.get("/openapi.json")).json()["paths"]
        paths = [path for path, methods in described.items() if "get" in methods and "{" not in path]
        for path in [*paths, "/v1/models/bytes", "/metrics", "/openapi.json"]:
            told, head = await client.get(path), await client.head(path)
            assert (head.status_code, head.content) == (told.status_code, b""), path
            assert head.headers["content-type" if told.content else "x-request-id"]
        assert (await client.head("/v1/completions")).status_code == 405
    assert len(paths) > 6


async def test_speculation_is_counted_under_vllms_names(here: Stage) -> None:
    async with httpx2.AsyncClient(base_url=here.url) as client:
        assert _counters(await client.get("/metrics")) == {"drafts": 0, "draft_tokens": 0, "accepted_tokens": 0}
        await client.post("/v1/completions", json=GOOD)
        await client.post("/v1/completions", json=GOOD | {"speculation": {"mode": "off"}})
        text = await client.get("/metrics")
    script = Script()
    assert _counters(text) == {
        "drafts": 4,
        "draft_tokens": 4 * script.gamma,
        "accepted_tokens": 11,
        "accepted_tokens_per_pos": {0: 4, 1: 4, 2: 3},
    }
    assert "spec_decode" not in "".join(line for line in text.text.splitlines() if "_created" in line)


def _counters(answer: httpx2.Response) -> dict[str, Any]:
    """Parse the text like `vllm bench serve`."""
    found: dict[str, Any] = {}
    for line in answer.text.splitlines():
        if not line.startswith("vllm:spec_decode_num_"):
            continue
        name = line.removeprefix("vllm:spec_decode_num_").partition("{")[0].removesuffix("_total")
        value = int(float(line.split()[-1]))
        if "position=" in line:
            position = int(line.partition('position="')[2].partition('"')[0])
            found.setdefault(name, {})[position] = value
        else:
            found[name] = value
    return found


async def test_pages_of_named_origins_may_call(here: Stage) -> None:
    asked = {"origin": PAGE, "access-control-request-method": "POST", "access-control-request-headers": "authorization"}
    async with stage(cors_origins=(PAGE,)) as open_, httpx2.AsyncClient() as client:
        for path in ("/v1/completions", "/v1/models"):
            preflight = await client.options(open_.url + path, headers=asked)
            assert (preflight.status_code, preflight.headers["access-control-allow-origin"]) == (200, PAGE)
            assert "authorization" in preflight.headers["access-control-allow-headers"]
        for body, status in ((GOOD, 200), ({}, 400)):
            answer = await client.post(f"{open_.url}/v1/completions", json=body, headers={"origin": PAGE})
            assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (status, PAGE)
        other = await client.post(f"{open_.url}/v1/completions", json=GOOD, headers={"origin": "https://other.example"})
        assert "access-control-allow-origin" not in other.headers
        closed = await client.post(f"{here.url}/v1/completions", json=GOOD, headers={"origin": PAGE})
        assert "access-control-allow-origin" not in closed.headers
