"""What `specdec doctor` asks the gateway: is what its settings name there, and is it what the gateway needs."""

import asyncio
from collections.abc import Callable

from gateway.config import GatewaySettings
from gateway.redis_client import ServerFacts
from gateway.redis_sessions import RedisSessionStore
from gateway.store_check import store_lines
from gateway.tokenizer import ModelTokenizer
from gateway.verifier_client import VerifierClient
from specdec.errors import ConfigError, NoVerifier, SessionStoreDown
from specdec.serving.checks import Line, port_line, write_lines

VERIFIER_TIMEOUT = 3.0
STORE_TIMEOUT = 5.0


async def check(settings: GatewaySettings, write: Callable[[str], object]) -> bool:
    """Write one JSON object a line for each thing looked at; False when something must be mended."""
    tokenizer, fingerprint = _tokenizer(settings)
    lines = [tokenizer]
    lines += await asyncio.gather(*(_verifier(address, fingerprint) for address in settings.verifiers))
    lines += await _session_store(settings.redis_url, settings.store_replicas)
    lines += [port_line("http", settings.http), port_line("address", settings.address)]
    return write_lines(lines, write)


def _tokenizer(settings: GatewaySettings) -> tuple[Line, str]:
    try:
        fingerprint = ModelTokenizer.load(settings.model.path).fingerprint
    except ConfigError as error:
        return Line("tokenizer", "fail", error.message, "set model.path to a folder with the model's tokenizer"), ""
    return Line("tokenizer", "ok", f"{settings.model.path} loads, fingerprint {fingerprint}"), fingerprint


async def _verifier(address: str, fingerprint: str) -> Line:
    name = f"verifier {address}"
    client = VerifierClient(address)
    try:
        info = await client.info(VERIFIER_TIMEOUT)
    except NoVerifier as error:
        return Line(name, "warn", error.message, "start it, or set verifiers to where it listens")
    finally:
        await client.close()
    if fingerprint and info.tokenizer_hash != fingerprint:
        detail = f"its tokenizer is {info.tokenizer_hash}, not this gateway's {fingerprint}"
        return Line(name, "fail", detail, "give gateway and verifier the same model folder")
    return Line(name, "ok", f"serves {info.model}, context {info.context_length}, gamma up to {info.gamma_max}")


async def _session_store(url: str, replicas: int) -> list[Line]:
    try:
        facts = await _store_facts(url)
    except (ConfigError, SessionStoreDown) as error:
        return [Line("session store", "fail", error.message, "start Redis or Valkey, or set redis_url to it")]
    except TimeoutError:
        return [Line("session store", "fail", "it does not answer", "start Redis or Valkey, or set redis_url to it")]
    return list(store_lines(facts, replicas))


async def _store_facts(url: str) -> ServerFacts:
    store = RedisSessionStore.at(url)
    try:
        async with asyncio.timeout(STORE_TIMEOUT):
            return await store.server_facts()
    finally:
        await store.close()
