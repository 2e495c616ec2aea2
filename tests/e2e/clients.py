"""The client library that users know, pointed at a system."""

from openai import OpenAI

from tests.e2e.system import System


def client_of(system: System) -> OpenAI:
    """A client of the system's gateway, which tries every request once."""
    return OpenAI(base_url=f"{system.http}/v1", api_key="none", max_retries=0, timeout=120)
