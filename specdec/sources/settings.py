"""How much the sources without a model remember."""

from pydantic import Field

from specdec.serving.settings import Section


class SourceSettings(Section):
    """What bounds the memory of sources without a model; of last tokens, up to twice as many count."""

    window: int = Field(default=4096, ge=16)
    """Last tokens of a sequence that its own source reads."""
    lookup_tokens: int = Field(default=3, ge=1, le=32)
    """Most last tokens of a sequence that `prompt_lookup` looks for earlier in it."""
    store_tokens: int = Field(default=16384, ge=16)
    """Last generated tokens that `suffix` keeps of each tenant and salt, at about 0.5 KiB each."""
    store_domains: int = Field(default=32, ge=1)
    """Tenants and salts of which `suffix` keeps tokens; beyond that, the one unused for longest is forgotten."""
