"""Loads the target on vLLM: the facts of the model, and the model that runs steps."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from importlib import metadata
from typing import Any

from specdec.engine.loader import ModelFacts, read_folder_facts
from verifier_service.backends.batch_plan import Row
from verifier_service.config import VerifierSettings
from verifier_service.vllm.adapters import load_adapters
from verifier_service.vllm.engine import fingerprint, open_engine
from verifier_service.vllm.head.drafts import open_head
from verifier_service.vllm.interfaces import check_interfaces
from verifier_service.vllm.kv.messages import SharedKv
from verifier_service.vllm.model import VllmModel

_PRIORITIES = 1000
"""Number of vLLM priorities in one second of rank. vLLM's priorities are integers."""


def load_target(settings: VerifierSettings) -> tuple[ModelFacts, VllmModel, SharedKv | None]:
    """Load the target, and describe the blocks of KV that it exchanges, if any. The calling thread owns it.

    Raises:
        ConfigError: the supported version of vLLM is not installed, or an argument is unknown.
        ModelRefused: the folder has no model that vLLM can serve, vLLM cannot load an adapter, or the head was made
            for another target.
    """
    check_interfaces()
    facts = read_folder_facts(settings.model.path, settings.model.dtype, allow_pickle=settings.model.allow_pickle)
    engine = open_engine(settings)
    context_length = min(facts.context_length, engine.vllm_config.model_config.max_model_len)
    facts = replace(facts, context_length=context_length, fingerprint=fingerprint(facts, settings))
    add = partial(_add, engine, load_adapters(engine, settings), context_length)
    head = None
    if settings.head is not None:
        shared = engine.collective_rpc("head_target")[0]
        head = open_head(settings, settings.head, shared, facts.vocab_size, facts.fingerprint)
    return facts, VllmModel(engine, facts.vocab_size, add, head), _shared_kv(engine, facts.fingerprint)


def _shared_kv(engine: Any, fingerprint: str) -> SharedKv | None:
    """Return the facts of the exchanged blocks; None if the connector is not ours, or there is none.

    Everything that the bytes of a block depend on is in the fingerprint.
    """
    layouts = engine.collective_rpc("kv_layout")
    if layouts[0] is None:
        return None
    tokens, sizes = engine.engine_core.engine_core.scheduler.block_size, [size for size, _ in layouts]
    text = json.dumps([fingerprint, metadata.version("vllm"), tokens, layouts])
    return SharedKv(hashlib.sha256(text.encode()).hexdigest(), tokens, sum(sizes) // tokens)


def _add(engine: Any, adapters: Mapping[str, Any], context_length: int, row: Row) -> str:
    """Add a row's sequence to vLLM and return its request id. vLLM ends it only at the end of the context."""
    from vllm.sampling_params import RequestOutputKind, SamplingParams

    prompt: dict[str, Any] = {"prompt_token_ids": list(row.tokens)}
    if row.call.cache_salt:
        prompt["cache_salt"] = row.call.cache_salt
    most = context_length - len(row.tokens)
    kind = RequestOutputKind.FINAL_ONLY  # the output is unused: verdicts are returned separately
    params = SamplingParams(temperature=0.0, max_tokens=most, ignore_eos=True, detokenize=False, output_kind=kind)
    priority, name = round(row.rank * _PRIORITIES), row.call.adapter
    adapter = adapters[name] if name else adapters.get("")
    return str(engine.add_request(row.kv_name, prompt, params, lora_request=adapter, priority=priority))
