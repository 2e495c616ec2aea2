"""Creates the models of the settings: their tokenizers, and the discovery of their verifiers."""

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Mapping
from functools import partial
from typing import Any

from gateway.config import GatewaySettings
from gateway.discovery.sources import source_of
from gateway.kv.tier import KvTier, KvVerifierClient
from gateway.metrics import GatewayMetrics
from gateway.models.served import SamplingDefaults, ServedModel, ServedModels
from gateway.store.pins import Pins
from gateway.text.prompt_encoder import PromptEncoder
from gateway.text.tokenizer import ModelTokenizer
from gateway.verifiers.balancer import VerifierPool
from gateway.verifiers.client import VerifierClient
from specdec.serving.discovery import watch_age
from specdec.serving.rpc.access import Access
from specdec.serving.rpc.tls import watch_expiry


async def load_tokenizers(settings: GatewaySettings) -> dict[str, ModelTokenizer]:
    """Load the tokenizers of all models, by name; raises ConfigError if one does not load."""
    return {
        name: await asyncio.to_thread(ModelTokenizer.load, route.path, settings.names_as_tokens, route.reasoning_parser)
        for name, route in settings.routes.items()
    }


def models_of(
    settings: GatewaySettings, tokenizers: Mapping[str, ModelTokenizer], metrics: GatewayMetrics, pins: Pins | None
) -> ServedModels:
    """Return the models of these tokenizers, still without verifiers.

    Raises:
        ConfigError: the generation_config.json of a model's folder is invalid.
    """
    served, uses_folder = [], settings.generation_config == "auto"
    for name, tokenizer in tokenizers.items():
        defaults = SamplingDefaults.of_folder(settings.routes[name].path) if uses_folder else SamplingDefaults()
        metrics.speculation.add_model(name)
        pool = VerifierPool(tokenizer.fingerprint, metrics, pins, name, settings.placement == "prefix")
        served.append(ServedModel(name, tokenizer, PromptEncoder(tokenizer), pool, defaults))
    return ServedModels(*served)


def searches(
    settings: GatewaySettings, models: ServedModels, metrics: GatewayMetrics, kv_tier: KvTier | None
) -> Iterator[Coroutine[Any, Any, None]]:
    """Yield the background tasks of each model: the discovery of its verifiers, and their probes.

    Raises:
        ConfigError: a file of the TLS settings cannot be read.
    """
    routes = settings.routes
    sources = {name: source_of(each.discovery, each.verifiers, settings.cluster) for name, each in routes.items()}
    watch_age(metrics.registry, *sources.values())
    watch_expiry(Access.of(settings.tls, settings.token).certificates, metrics.registry)
    for model in models:
        dial = _dial(access_of(settings, model.name), kv_tier)
        yield model.pool.follow(sources[model.name], dial)
        yield model.pool.watch(settings.poll)


def access_of(settings: GatewaySettings, model: str) -> Access:
    """Return the gateway's credentials for the verifiers of a model; raises ConfigError if a file cannot be read."""
    peer = settings.routes[model].peer or settings.tls.peer
    return Access.of(settings.tls.model_copy(update={"peer": peer}), settings.token)


def _dial(access: Access, kv_tier: KvTier | None) -> Callable[[str], VerifierClient]:
    if kv_tier is None:
        return partial(VerifierClient, access=access)
    return partial(KvVerifierClient, access=access, tier=kv_tier)
