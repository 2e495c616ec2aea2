"""Checks of a verifier for `specdec doctor`: the model loads, the drafters answer, and the ports are free."""

import asyncio
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor

from prometheus_client import CollectorRegistry

from specdec.engine import load_tokenizer_json
from specdec.engine.loader import ModelFacts
from specdec.errors import ConfigError, DrafterMismatch, ModelRefused
from specdec.serving.checks import Check, port_check, write_checks
from specdec.serving.discovery import first_snapshot, source_of
from specdec.serving.rpc.access import Access
from verifier_service.app import Target, identity_of, load_target
from verifier_service.config import VerifierSettings
from verifier_service.drafts.client import DrafterClient, Identity, LinkBroken, LinkTimes
from verifier_service.drafts.link import DrafterLink
from verifier_service.metrics import VerifierMetrics

_MISMATCH = (
    "give it the target's tokenizer, or set drafter_vocabulary to translate (specdec up --drafter-vocabulary "
    "translate); give it this version and the same token"
)
_DRAFTER_SECONDS = 3.0
"""Timeout of drafter discovery and of each drafter's handshake, in seconds."""


async def check(settings: VerifierSettings, write: Callable[[str], object]) -> bool:
    """Write one line of JSON for each check; return False if a check failed."""
    with ThreadPoolExecutor(1) as thread:
        lines, target = await asyncio.get_running_loop().run_in_executor(thread, _model, settings, thread)
    addresses = await _discovered(settings)
    if target is not None:
        lines += await _drafters(settings, target.facts, addresses)
    if not addresses:
        lines.append(
            Check.warn("drafters", "none: every token is plain", "set drafters or discovery.names to where they listen")
        )
    lines += [port_check("http", settings.http), port_check("address", settings.address)]
    return write_checks(lines, write)


def _model(settings: VerifierSettings, thread: ThreadPoolExecutor) -> tuple[list[Check], Target | None]:
    try:
        target = load_target(settings, thread)
    except ConfigError as error:
        return [Check.fail("model", error.message, "set model.path to the folder of a model it can serve")], None
    facts = target.facts
    loaded = f"{settings.model.path} loads on {target.device}, context {facts.context_length}"
    tokenizer = f"{facts.vocab_size} ids, fingerprint {facts.tokenizer_hash}"
    return [Check.ok("model", loaded), Check.ok("tokenizer", tokenizer)], target


async def _discovered(settings: VerifierSettings) -> list[str]:
    try:
        found = await first_snapshot(source_of(settings.discovery, settings.drafters), _DRAFTER_SECONDS)
    except TimeoutError:
        return []
    return [endpoint.address for endpoint in found]


async def _drafters(settings: VerifierSettings, facts: ModelFacts, addresses: Iterable[str]) -> list[Check]:
    try:
        access = Access.of(settings.tls, settings.token)
        identity = identity_of(settings, facts, load_tokenizer_json(settings.model.path), "check", access)
    except ModelRefused as error:
        return [Check.fail("drafter_vocabulary", error.message, "set drafter_vocabulary to same")]
    except ConfigError as error:
        return [Check.fail("tls", error.message, "set tls.certificate, tls.key and tls.ca to files it can read")]
    return await asyncio.gather(*(_drafter(address, identity) for address in addresses))


async def _drafter(address: str, identity: Identity) -> Check:
    """Check a drafter by a connection like that of a serving verifier."""
    name = f"drafter {address}"
    link = DrafterLink(address, probe=_DRAFTER_SECONDS, metrics=VerifierMetrics(CollectorRegistry()))
    client = DrafterClient(link, identity, LinkTimes(hello=_DRAFTER_SECONDS))
    try:
        async with client.greeted():
            model = link.drafter_state.model
            shared = "" if link.overlap == 1.0 else f", translated, {link.overlap:.1%} of the vocabulary in common"
            return Check.ok(name, f"drafts with {model}, {link.step_seconds * 1000:.1f} ms a step{shared}")
    except DrafterMismatch as error:
        return Check.fail(name, error.message, _MISMATCH)
    except LinkBroken as error:
        return Check.warn(name, str(error), "start it, or set drafters to where it listens")
