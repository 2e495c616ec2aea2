"""A foreign web page cannot use a gateway on this machine, and unexpected input from callers is in no log."""

import httpx2
import pytest
from structlog.testing import capture_logs

from gateway.http.edge import is_local
from tests.integration.gateway.stage import Stage, stage

SECRET = "sk-topsecret5150"
GOOD = {"prompt": "x", "max_tokens": 2}


@pytest.mark.parametrize(
    ("host", "local"),
    [
        ("127.0.0.1:8000", True),
        ("127.9.9.9", True),
        ("[::1]:8000", True),
        ("localhost:1", True),
        ("LOCALHOST.", True),
        ("a.localhost", True),
        ("gateway:8000", True),
        ("", True),
        ("named.example:8000", True),
        ("evil.example", False),
        ("localhost.evil.example:8000", False),
        ("127.0.0.1.evil.example", False),
        ("10.0.0.1:8000", False),
        ("0.0.0.0", False),
        ("[::2]:80", False),
    ],
)
def test_names_of_this_machine_are_told_from_others(host: str, local: bool) -> None:
    assert is_local(host, {"named.example"}) is local


@pytest.mark.parametrize("origin", ["https://evil.example", "null", "http://localhost:3000"])
@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=a"])
async def test_a_page_sends_json_by_its_type_or_nothing(here: Stage, kind: str, origin: str) -> None:
    page = {"origin": origin}  # null: a file, or a frame in a sandbox
    async with httpx2.AsyncClient(base_url=here.url) as client:
        sent = {"content": b'{"prompt": "x", "max_tokens": 2}'}
        refused = await client.post("/v1/completions", **sent, headers=page | {"content-type": kind})
        assert (refused.status_code, refused.json()["error"]["code"]) == (415, "unsupported_media_type")
        typed = page | {"content-type": "application/json; charset=utf-8"}
        assert (await client.post("/v1/completions", **sent, headers=typed)).status_code == 200
        assert (await client.post("/v1/completions", **sent, headers={"content-type": kind})).status_code == 200


async def test_a_name_of_another_machine_is_not_answered(here: Stage) -> None:
    async with httpx2.AsyncClient(base_url=here.url) as client:
        for path in ("/v1/models", "/", "/livez"):
            refused = await client.get(path, headers={"host": "evil.example"})
            assert (refused.status_code, refused.json()["error"]["code"]) == (403, "host_refused")
        assert (await client.post("/v1/completions", json=GOOD, headers={"host": "localhost:1"})).status_code == 200
    async with stage(hosts=("named.example",)) as named, httpx2.AsyncClient(base_url=named.url) as client:
        assert (await client.get("/v1/models", headers={"host": "named.example"})).status_code == 200


async def test_what_is_sent_in_odd_places_is_in_no_log(here: Stage) -> None:
    with capture_logs() as logs:
        async with httpx2.AsyncClient(base_url=here.url) as client:
            for path in (f"/v1/models/{SECRET}", f"/{SECRET}", f"/v1/sessions?user={SECRET}&limit={SECRET}"):
                await client.get(path, headers={"x-request-id": SECRET, "host": SECRET})
            for fields in ({SECRET: 1}, {"model": SECRET}, {"session": SECRET}, {"stop": {SECRET: 1}}, {"n": SECRET}):
                odd = {"x-request-id": SECRET, "idempotency-key": SECRET * 20, "authorization": f"Bearer {SECRET}"}
                await client.post("/v1/completions", json={"prompt": SECRET, **fields}, headers=odd)
                await client.post("/v1/completions", json={"prompt": SECRET, "max_tokens": 2, **fields})
            await client.get(f"/v1/generations/{SECRET}/events", headers={"last-event-id": SECRET})
            await client.post("/v1/completions", content=SECRET.encode())
            await client.get("/v1/models", headers={"host": f"{SECRET}.example"})
    seen = [each for each in logs if each["log_level"] != "debug"]
    assert any(each["event"] == "request_refused" for each in seen)
    assert [each for each in seen if SECRET in str(each)] == []
