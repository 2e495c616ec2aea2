"""How much the sources without a model remember."""

from pydantic import Field

from specdec.serving.settings import Section


class SourceSettings(Section):
    """Memory limits of sources without a model. A limit of last tokens may be exceeded up to twofold."""

    window: int = Field(default=4096, ge=16)
    """Last tokens of a sequence that its own source reads."""
    lookup_tokens: int = Field(default=3, ge=1, le=32)
    """Largest number of last tokens that `prompt_lookup` searches for earlier in the sequence."""
    store_tokens: int = Field(default=16384, ge=16)
    """Last generated tokens that `suffix` keeps of each tenant and salt, at about 0.5 KiB each."""
    store_domains: int = Field(default=32, ge=1)
    """Number of tenants and salts for which `suffix` keeps tokens; the least recently used one is dropped."""
    sampled: bool = False
    """Whether `ngram` draws its drafts from its counts, with these as q̂, at temperatures above 0; otherwise it drafts
    the most frequent token as a point mass, as at temperature 0."""
