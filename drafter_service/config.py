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
    """A second address, always in plaintext and without a token, for grpc.health.v1 and reflection, which then leaves
    the first; none when None."""
    tls: TlsSettings = TlsSettings()
    token: Token = NO_TOKEN
    """Token that verifiers must send; everybody may call when empty."""
    support: int = Field(default=64, ge=1, le=65535)
    """Most ids that a draft's distribution holds, which is sent with every token."""
    ahead: int = Field(default=16, ge=0, le=64)
    """Most tokens drafted past the draft that was asked for, while no verifier waits for any draft; never more than the
    next round can use, which is one more than the length of the draft."""
    outcomes: int = Field(default=16, ge=0, le=64)
    """Most outcomes of a verdict that chains are pushed for while it is under way, for each session whose verifier asks
    for that; only language models push."""
    sources: SourceSettings = SourceSettings()
    max_sessions: int = Field(default=512, ge=1)
    """Most open sessions, of all verifiers together."""
    max_sessions_per_verifier: int = Field(default=256, ge=1)
    """Most open sessions of one verifier, on all its streams together; where sessions or memory run out, the verifier
    that holds most gives back to those that hold less."""
    step_sessions: int = Field(default=128, ge=1)
    """Most sessions that get a token in one step; where more want one, verifiers get equal shares of it."""
    chunk_tokens: int = Field(default=512, ge=1)
    """Most prompt tokens computed in one step beside the sessions that draft, shared by verifiers in the same way."""
    kv_bytes: int = Field(default=2**29, ge=1)
    """Budget of all keys and values in bytes, those kept for later sessions included."""
    threads: int = Field(default=1, ge=1)
    """Threads that PyTorch uses."""

    @model_validator(mode="after")
    def _check_kind(self) -> Self:
        if self.local and self.kind != "model":
            raise ValueError(f"local: only drafters of kind model verify guesses, and kind is {self.kind}")
        if (self.head is not None) is not (self.kind == "head"):
            raise ValueError("head: kind `head` needs the folder of a head, and no other kind has one")
        return self
