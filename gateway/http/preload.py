"""Imports slow modules in advance, for a process that forks gateways.

gRPC is excluded, because it must not be used before a fork.
"""

from importlib import import_module

from gateway.text.without_torch import keep_torch_out

keep_torch_out()
for each in ("fastapi", "uvicorn", "redis.asyncio", "transformers", "transformers.models.auto.tokenization_auto"):
    import_module(each)
import_module("transformers.tokenization_utils_tokenizers")
