"""Metrics that a gateway always exports, and log lines about its own failures."""

import httpx2
from structlog.testing import capture_logs

from tests.integration.gateway.stage import Stage, stage


async def page(here: Stage) -> str:
    async with httpx2.AsyncClient(base_url=here.url) as client:
        return (await client.get("/metrics")).text


async def test_ready_verifiers_are_counted_and_the_process_is_described(here: Stage) -> None:
    text = await page(here)
    assert '\nspecdec_verifiers_ready{model="bytes"} 1.0\n' in text
    assert "specdec_build_info{" in text
    assert "\nprocess_resident_memory_bytes " in text
    assert "_created" not in text


async def test_without_a_verifier_the_count_is_0_and_a_503_is_a_warning() -> None:
    async with stage(verifiers=("127.0.0.1:1",), failover={"arrival": 0.0}) as here:
        assert '\nspecdec_verifiers_ready{model="bytes"} 0.0\n' in await page(here)
        with capture_logs() as logs:
            async with httpx2.AsyncClient(base_url=here.url) as client:
                refused = [
                    (await client.post("/v1/completions", json={"prompt": prompt})).status_code for prompt in ("x", "")
                ]
        assert refused == [503, 400]
        levels = [each["log_level"] for each in logs if each["event"] == "request_refused"]
        assert levels == ["warning", "info"]
