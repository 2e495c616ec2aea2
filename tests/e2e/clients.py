"""The OpenAI client library, connected to a system under test."""

from openai import OpenAI

from tests.e2e.system import System


def client_of(system: System) -> OpenAI:
    """Return a client of the system's gateway that sends every request once."""
    return OpenAI(base_url=f"{system.http}/v1", api_key="none", max_retries=0, timeout=120)
