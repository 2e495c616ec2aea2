"""The settings of a drafter."""

from pathlib import Path
from typing import Literal, Self

from pydantic import Field, model_validator
from pydantic_settings import SettingsConfigDict

from specdec.serving.addresses import Address
from specdec.serving.rpc.access import NO_TOKEN, Token
from specdec.serving.rpc.tls import TlsSettings
from specdec.serving.settings import ModelSettings, Settings
from specdec.serving.telemetry.tracing import OtelSettings
from specdec.sources.settings import SourceSettings


class DrafterSettings(Settings):
    """Defaults < YAML file < SPECDEC_DRAFTER_* < flags."""

    model_config = SettingsConfigDict(env_prefix="SPECDEC_DRAFTER_")

    kind: Literal["model", "head", "counts", "ngram", "prompt_lookup", "suffix", "hybrid", "random"] = "model"
    """Source of the drafts: a language model, a draft head of the target, counts of a corpus, n-grams or repetitions of
    the sequence, earlier generated sequences, `hybrid` (such a source, and the model if it finds nothing), or random
    tokens."""
    backend: Literal["native", "transformers"] = "native"
    """Engine of the draft model: `native`, or `transformers`, which runs one sequence at a time. A target that is an
    encoder-decoder on the backend `transformers` needs such a drafter."""
    first: Literal["ngram", "prompt_lookup", "suffix"] = "suffix"
    """Source that `hybrid` tries before the model."""
    local: tuple[Literal["ngram", "prompt_lookup", "suffix"], ...] = ()
    """Sources that guess the drafts of a `model`, tried in this order. The model confirms several guesses in one step,
    and its drafts keep their distribution."""
    model: ModelSettings
    """The draft model; its tokenizer must be the target's. For `head`, the target, of which only the embedding and the
    output layer are loaded; for `counts`, the folder of a counts file; for kinds without a model, any folder with the
    tokenizer."""
    head: Path | None = None
    """Folder of the head for kind `head`, a `speculators` or EAGLE-3 checkpoint; the verifier's `drafter_head` must be
    the same."""
    address: Address = "127.0.0.1:50052"
    """Address of the gRPC API."""
    http: Address = "127.0.0.1:0"
    """Address of /metrics, /livez and /readyz."""
    otel: OtelSettings = OtelSettings()
    health: Address | None = None
    """Second address, always in plaintext and without a token, for grpc.health.v1 and reflection. Reflection then
    leaves the first address. None opens no second address."""
    tls: TlsSettings = TlsSettings()
    token: Token = NO_TOKEN
    """Token that verifiers must send; empty lets any client call."""
    support: int = Field(default=64, ge=1, le=65535)
    """Largest number of ids in a draft's distribution q̂, which is sent with every token."""
    ahead: int = Field(default=16, ge=0, le=64)
    """Largest number of tokens drafted ahead of a request, while no verifier waits for a draft. At most γ + 1 are
    drafted ahead, because the next round can use no more."""
    outcomes: int = Field(default=16, ge=0, le=64)
    """Largest number of possible verdicts of a running round for which chains are pushed, for each session whose
    verifier requests them. Only language models push chains."""
    sources: SourceSettings = SourceSettings()
    max_sessions: int = Field(default=512, ge=1)
    """Largest number of open sessions of all verifiers together."""
    max_sessions_per_verifier: int = Field(default=256, ge=1)
    """Largest number of open sessions of one verifier, over all its streams. When sessions or memory run out, the
    verifier with the most loses some to verifiers with fewer."""
    step_sessions: int = Field(default=128, ge=1)
    """Largest number of sessions that get a token in one step. If more want one, verifiers get equal shares."""
    chunk_tokens: int = Field(default=512, ge=1)
    """Largest number of prompt tokens in one step, in addition to the tokens of sessions that draft. Verifiers get
    equal shares."""
    kv_bytes: int = Field(default=2**29, ge=1)
    """Memory for all keys and values in bytes, including those cached for later sessions."""
    threads: int = Field(default=1, ge=1)
    """Number of threads of PyTorch."""

    @model_validator(mode="after")
    def _check_kind(self) -> Self:
        if self.local and self.kind != "model":
            raise ValueError(f"local: only drafters of kind model verify guesses, and kind is {self.kind}")
        if (self.head is not None) is not (self.kind == "head"):
            raise ValueError("head: kind `head` needs the folder of a head, and no other kind has one")
        return self
