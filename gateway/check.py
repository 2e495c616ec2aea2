"""Configuration checks of the gateway for `specdec doctor`: every file, address and server named in the settings."""

import asyncio
from collections.abc import Callable, Iterable
from datetime import UTC, datetime

from gateway.callers.caller import ApiKey
from gateway.callers.key_file import parse, read_file, readable_by_all
from gateway.config import GatewaySettings, ModelRoute
from gateway.discovery.sources import source_of
from gateway.http.server import server_context
from gateway.kv.check import check_block_store
from gateway.models.routing import access_of
from gateway.store.check import store_checks
from gateway.store.redis_client import ServerFacts, server_facts
from gateway.text.tokenizer import ModelTokenizer
from gateway.verifiers.client import VerifierClient, VerifierRefused
from specdec.errors import ConfigError, DeadlineExceeded, Draining, NoVerifier, SessionStoreDown
from specdec.serving.addresses import is_loopback
from specdec.serving.checks import Check, port_check, write_checks
from specdec.serving.discovery import first_snapshot
from specdec.serving.rpc.tls import Certificates

VERIFIER_TIMEOUT = 3.0
DISCOVERY_TIMEOUT = 5.0


async def check(settings: GatewaySettings, write: Callable[[str], object]) -> bool:
    """Write each check as a line of JSON; return False if one failed."""
    checks: list[Check] = []
    for name, route in settings.routes.items():
        checks += await _model(settings, name, route)
    checks += await _stores(settings)
    checks += [_callers(settings), *_public_tls(settings)]
    own = {"http": settings.http, "address": settings.address, "admin": settings.admin, "health": settings.health}
    checks += [port_check(name, address) for name, address in own.items() if address]
    return write_checks(checks, write)


async def _model(settings: GatewaySettings, name: str, route: ModelRoute) -> list[Check]:
    tokenizer, fingerprint = _tokenizer(route)
    found, addresses = await _discovered(settings, route)
    return [tokenizer, *found, *await _verifiers(settings, name, addresses, fingerprint)]


def _tokenizer(route: ModelRoute) -> tuple[Check, str]:
    try:
        fingerprint = ModelTokenizer.load(route.path).fingerprint
    except ConfigError as error:
        return Check.fail("tokenizer", error.message, "set the model's path to a folder with its tokenizer"), ""
    return Check.ok("tokenizer", f"{route.path} loads, fingerprint {fingerprint}"), fingerprint


async def _discovered(settings: GatewaySettings, route: ModelRoute) -> tuple[list[Check], list[str]]:
    """Return the discovery check and the verifier addresses it found."""
    kind = route.discovery.kind
    source = source_of(route.discovery, route.verifiers, settings.cluster)
    try:
        endpoints = await first_snapshot(source, DISCOVERY_TIMEOUT)
    except ConfigError as error:
        return [Check.fail("discovery", error.message, "run in a pod, or set cluster.kubeconfig")], []
    except TimeoutError:
        return [Check.fail("discovery", f"no answer from {kind}", "see that it can be reached and allows it")], []
    addresses = [endpoint.address for endpoint in endpoints]
    if not addresses:
        return [Check.warn("discovery", f"{kind} knows no verifier", "start one, or mend discovery.names")], []
    return [Check.ok("discovery", f"{kind}: {', '.join(addresses)}")], addresses


async def _verifiers(settings: GatewaySettings, model: str, addresses: Iterable[str], fingerprint: str) -> list[Check]:
    try:
        access = access_of(settings, model)
    except ConfigError as error:
        return [Check.fail("tls", error.message, "set tls.certificate, tls.key and tls.ca to files it can read")]
    clients = [VerifierClient(address, access) for address in addresses]
    return await asyncio.gather(*(_verifier(client, fingerprint) for client in clients))


async def _verifier(client: VerifierClient, fingerprint: str) -> Check:
    name = f"verifier {client.address}"
    try:
        info = await client.info(VERIFIER_TIMEOUT)
    except VerifierRefused as error:
        return Check.fail(name, error.message, "give gateway and verifier the same token")
    except (NoVerifier, Draining, DeadlineExceeded) as error:
        return Check.warn(name, error.message, "start it, or set verifiers to where it listens")
    finally:
        await client.close()
    if fingerprint and info.tokenizer_hash != fingerprint:
        detail = f"its tokenizer is {info.tokenizer_hash}, not this gateway's {fingerprint}"
        return Check.fail(name, detail, "give gateway and verifier the same model folder")
    return Check.ok(name, f"serves {info.model}, context {info.context_length}, gamma up to {info.gamma_max}")


def _callers(settings: GatewaySettings) -> Check:
    """Check who may call the gateway."""
    if settings.api_keys is None:
        reachable = [address for address in (settings.http, settings.address) if not is_loopback(address)]
        if reachable:
            detail = f"every client that reaches {' or '.join(reachable)} is served"
            return Check.warn("api keys", detail, "set api_keys, or have a proxy that authenticates before it")
        return Check.ok("api keys", "none needed; only this machine reaches the gateway")
    try:
        keys = parse(read_file(settings.api_keys), settings.api_keys, ApiKey("", ""))
    except ConfigError as error:
        return Check.fail("api keys", error.message, "mend the file; `tenant: sha256:HEX` is a line of it")
    found = f"{len(keys)} keys of {len({key.tenant for key in keys.values()})} tenants in {settings.api_keys}"
    if readable_by_all(settings.api_keys):
        return Check.warn("api keys", f"{found}, which all users of this machine may read", "chmod o-r")
    return Check.ok("api keys", found)


def _public_tls(settings: GatewaySettings) -> list[Check]:
    """Check the public TLS certificate; no check if none is configured."""
    try:
        certificates = Certificates.of(settings.public_tls)
        if certificates is None:
            return []
        server_context(certificates)
    except ConfigError as error:
        return [Check.fail("public tls", error.message, "set public_tls.certificate and public_tls.key")]
    ends = datetime.fromtimestamp(certificates.expiry, UTC)
    if ends < datetime.now(UTC):
        return [Check.fail("public tls", f"the certificate ended {ends:%Y-%m-%d}", "renew it")]
    return [Check.ok("public tls", f"{settings.public_tls.certificate} is valid until {ends:%Y-%m-%d}")]


async def _stores(settings: GatewaySettings) -> list[Check]:
    facts: ServerFacts | None = None
    try:
        facts = await server_facts(settings.redis_url)
        checks = list(store_checks(facts, settings.store_replicas))
    except (ConfigError, SessionStoreDown) as error:
        checks = [Check.fail("session store", error.message, "start Redis or Valkey, or set redis_url to it")]
    return [*checks, *await check_block_store(settings.kv.redis_url, facts)] if settings.kv.redis_url else checks
