"""A gateway that connects to a process other than a verifier reports it."""

import httpx2

from tests.integration.gateway.stage import Stage, stage


async def test_an_address_of_another_service_is_named_where_a_verifier_should_be(here: Stage) -> None:
    async with stage(verifiers=(here.gateway.grpc,)) as wrong, httpx2.AsyncClient() as client:
        missing = (await client.get(f"{wrong.url}/readyz")).json()["missing"]
    address = here.gateway.grpc
    hint = f"{address} is no verifier's: is it that of a drafter, or of a gateway?"
    assert missing == [f"verifier {address} is refused: {hint}"]
