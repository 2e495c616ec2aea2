"""What `specdec doctor` asks the gateway: is what its settings name there, and is it what the gateway needs."""

import asyncio
from collections.abc import Callable, Iterable

from gateway.config import GatewaySettings
from gateway.discovery.sources import source_of
from gateway.kv.check import check_block_store
from gateway.store.check import store_lines
from gateway.store.redis_client import ServerFacts
from gateway.store.redis_sessions import RedisSessionStore
from gateway.text.tokenizer import ModelTokenizer
from gateway.verifiers.client import VerifierClient
from specdec.errors import ConfigError, DeadlineExceeded, Draining, NoVerifier, SessionStoreDown
from specdec.serving.checks import Line, port_line, write_lines
from specdec.serving.discovery import first_snapshot
from specdec.serving.tls import Certificates

VERIFIER_TIMEOUT = 3.0
STORE_TIMEOUT = 5.0
DISCOVERY_TIMEOUT = 5.0


async def check(settings: GatewaySettings, write: Callable[[str], object]) -> bool:
    """Write one JSON object a line for each thing looked at; False when something must be mended."""
    tokenizer, fingerprint = _tokenizer(settings)
    lines = [tokenizer]
    found, addresses = await _discovered(settings)
    lines += found
    lines += await _verifiers(settings, addresses, fingerprint)
    lines += await _stores(settings)
    lines += [port_line("http", settings.http), port_line("address", settings.address)]
    return write_lines(lines, write)


def _tokenizer(settings: GatewaySettings) -> tuple[Line, str]:
    try:
        fingerprint = ModelTokenizer.load(settings.model.path).fingerprint
    except ConfigError as error:
        return Line("tokenizer", "fail", error.message, "set model.path to a folder with the model's tokenizer"), ""
    return Line("tokenizer", "ok", f"{settings.model.path} loads, fingerprint {fingerprint}"), fingerprint


async def _discovered(settings: GatewaySettings) -> tuple[list[Line], list[str]]:
    """What discovery says now, and the verifiers it finds."""
    kind = settings.discovery.kind
    source = source_of(settings.discovery, settings.verifiers, settings.cluster)
    try:
        endpoints = await first_snapshot(source, DISCOVERY_TIMEOUT)
    except ConfigError as error:
        return [Line("discovery", "fail", error.message, "run in a pod, or set cluster.kubeconfig")], []
    except TimeoutError:
        return [Line("discovery", "fail", f"no answer from {kind}", "see that it can be reached and allows it")], []
    addresses = [endpoint.address for endpoint in endpoints]
    if not addresses:
        return [Line("discovery", "warn", f"{kind} knows no verifier", "start one, or mend discovery.names")], []
    return [Line("discovery", "ok", f"{kind}: {', '.join(addresses)}")], addresses


async def _verifiers(settings: GatewaySettings, addresses: Iterable[str], fingerprint: str) -> list[Line]:
    try:
        certificates = Certificates.of(settings.tls)
    except ConfigError as error:
        return [Line("tls", "fail", error.message, "set tls.certificate, tls.key and tls.ca to files it can read")]
    clients = [VerifierClient(address, certificates) for address in addresses]
    return await asyncio.gather(*(_verifier(client, fingerprint) for client in clients))


async def _verifier(client: VerifierClient, fingerprint: str) -> Line:
    name = f"verifier {client.address}"
    try:
        info = await client.info(VERIFIER_TIMEOUT)
    except (NoVerifier, Draining, DeadlineExceeded) as error:
        return Line(name, "warn", error.message, "start it, or set verifiers to where it listens")
    finally:
        await client.close()
    if fingerprint and info.tokenizer_hash != fingerprint:
        detail = f"its tokenizer is {info.tokenizer_hash}, not this gateway's {fingerprint}"
        return Line(name, "fail", detail, "give gateway and verifier the same model folder")
    return Line(name, "ok", f"serves {info.model}, context {info.context_length}, gamma up to {info.gamma_max}")


async def _stores(settings: GatewaySettings) -> list[Line]:
    facts: ServerFacts | None = None
    remedy = "start Redis or Valkey, or set redis_url to it"
    try:
        facts = await _store_facts(settings.redis_url)
        lines = list(store_lines(facts, settings.store_replicas))
    except (ConfigError, SessionStoreDown) as error:
        lines = [Line("session store", "fail", error.message, remedy)]
    except TimeoutError:
        lines = [Line("session store", "fail", "it does not answer", remedy)]
    return [*lines, *await check_block_store(settings.kv.redis_url, facts)] if settings.kv.redis_url else lines


async def _store_facts(url: str) -> ServerFacts:
    store = RedisSessionStore.at(url)
    try:
        async with asyncio.timeout(STORE_TIMEOUT):
            return await store.server_facts()
    finally:
        await store.close()
