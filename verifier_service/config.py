"""The settings of a verifier."""

from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, model_validator
from pydantic_settings import SettingsConfigDict

from specdec.errors import FieldInvalid, GammaTooLarge
from specdec.planning.gamma_policy import GammaPolicy, parse_gamma
from specdec.rules.speculation import MAX_DEPTH, MAX_NODES, TreeOptions
from specdec.serving.addresses import Address
from specdec.serving.discovery import DiscoverySettings
from specdec.serving.rpc.access import NO_TOKEN, Token
from specdec.serving.rpc.tls import DialTlsSettings
from specdec.serving.settings import ModelSettings, Section, Settings
from specdec.serving.telemetry.tracing import OtelSettings
from specdec.sources.maker import SourceKind
from specdec.sources.settings import SourceSettings


class DraftingSettings(Section):
    """Waiting times for drafts, in seconds, pushed chains, and groups of sessions."""

    timeout: float = Field(default=0.2, gt=0)
    """Longest wait for the draft of one round. Automatic γ orders only drafts that can arrive within it."""
    probe: float = Field(default=1.0, gt=0)
    """Time after a wait without a draft during which rounds use only drafts that have already arrived."""
    overload_pause: float = Field(default=2.0, gt=0)
    """Time for which a session avoids a drafter that has no room for it, or that failed."""
    outcomes: Annotated[int, Field(ge=0, le=64)] | Literal["auto"] = "auto"
    """Number of likely outcomes of a running verdict that drafters push chains for; 0 pushes none, and `auto` pushes 8
    from each drafter with a long round trip and idle time. Pushed chains hide the network, and cost a drafter about as
    much work as that many sessions."""
    groups: Annotated[int, Field(ge=1, le=2)] | Literal["auto"] = "auto"
    """Groups of sessions: with 2, one is drafted for while the other is verified, which pays if a pass over half of the
    sessions takes about half as long; 1 verifies all sessions in every pass; `auto` measures which is faster."""


_OWN_ARGUMENTS = (
    "model", "dtype", "worker_cls", "scheduler_cls", "speculative_config", "scheduling_policy", "async_scheduling",
    "skip_tokenizer_init", "disable_log_stats", "enable_lora", "max_loras", "pipeline_parallel_size",
    "data_parallel_size", "seed",
)  # fmt: skip
"""Arguments of vLLM's engine that the verifier sets itself or does not support."""


def _check_engine_arguments(values: dict[str, Any]) -> dict[str, Any]:
    """Return the values if none of them is in `_OWN_ARGUMENTS`; raise ValueError otherwise."""
    for name in _OWN_ARGUMENTS:
        if name in values:
            raise ValueError(f"{name!r} cannot be given here")
    return values


class VllmSettings(Section):
    """Settings of the backend `vllm`."""

    engine_args: Annotated[dict[str, Any], AfterValidator(_check_engine_arguments)] = Field(default_factory=dict)
    """Arguments of vLLM's engine by their names in Python, as in `tensor_parallel_size: 2` or `quantization: fp8`."""
    lora: Path | None = None
    """Folder of a LoRA adapter that every generation uses; None uses the model without an adapter."""
    lora_modules: dict[Annotated[str, Field(min_length=1)], Path] = Field(default_factory=dict)
    """Folders of the LoRA adapters that requests may choose, by name, as in `{"sql": "/adapters/sql"}`; a request gives
    the name as its `model`."""

    @property
    def adapters(self) -> dict[str, Path]:
        """Folder of each adapter by name. The empty name is the adapter that every generation uses."""
        return self.lora_modules if self.lora is None else {"": self.lora}

    @model_validator(mode="after")
    def _keeps_adapters_apart(self) -> Self:
        if self.lora is not None and self.lora_modules:
            raise ValueError("lora_modules: `lora` gives every generation its adapter, so none can be chosen")
        if self.lora_modules and "kv_transfer_config" in self.engine_args:
            raise ValueError("lora_modules: the connector of `kv_transfer_config` may mix the blocks of adapters")
        return self


def _check_gamma(value: Any) -> Any:
    """Return the value if it is valid as a request's draft length; raise ValueError otherwise."""
    try:
        parse_gamma(value)
    except FieldInvalid as error:
        raise ValueError(error.message.removeprefix("speculation.")) from error
    return value


class TreeSettings(Section):
    """Default shape of draft trees."""

    nodes: int = Field(ge=1, le=MAX_NODES)
    """Largest number of drafted tokens in a round."""
    width: int = Field(ge=1, le=MAX_NODES)
    """Largest number of children of a node that one drafter proposes."""
    depth: int = Field(ge=1, le=MAX_DEPTH)
    """Largest number of drafted tokens on a path."""
    replacement: bool = False
    """True to draw siblings independently; false never draws the same sibling twice."""
    drafters: tuple[str, ...] = ()
    """Names of drafters or sources, each of which makes a tree; empty uses one drafter."""

    @property
    def options(self) -> TreeOptions:
        """Return the tree options of a request with this shape."""
        return TreeOptions(self.nodes, self.width, self.depth, self.replacement, self.drafters)

    @model_validator(mode="after")
    def _has_sound_drafters(self) -> Self:
        try:
            _ = self.options
        except FieldInvalid as error:
            raise ValueError(error.message.removeprefix("speculation.tree.")) from error
        return self


class VerifierSettings(Settings):
    """Defaults < YAML file < SPECDEC_VERIFIER_* < flags."""

    model_config = SettingsConfigDict(env_prefix="SPECDEC_VERIFIER_")

    model: ModelSettings
    """The target model."""
    backend: Literal["native", "vllm", "transformers"] = "native"
    """Engine of the target: `native`; `vllm`, in its own environment; or `transformers`, which runs one sequence at
    a time, is slow, and supports encoder-decoders and decoders that `native` refuses."""
    vllm: VllmSettings = VllmSettings()
    address: Address = "127.0.0.1:50053"
    """Address of the gRPC API."""
    http: Address = "127.0.0.1:0"
    """Address of /metrics, /livez and /readyz."""
    otel: OtelSettings = OtelSettings()
    health: Address | None = None
    """Second address, always in plaintext and without a token, for grpc.health.v1 and reflection. Reflection then
    leaves the first address. None opens no second address."""
    tls: DialTlsSettings = DialTlsSettings()
    token: Token = NO_TOKEN
    """Token that gateways must send, and that the verifier sends to drafters; any client may call when empty."""
    drafters: tuple[Address, ...] = ()
    """Static list of drafters to connect to. Without a drafter and without a local source every token is plain."""
    drafters_expected: bool = True
    """Whether a drafter that has never answered counts as `drafter_unavailable`; otherwise it counts as `no_match`."""
    drafter: str = ""
    """Default drafter of requests: a source, or a drafter's kind, model or address; any when empty."""
    drafter_vocabulary: Literal["same", "translate"] = "same"
    """Whether a drafter must have the target's tokenizer, or may translate the tokens that both tokenizers have."""
    least_overlap: float = Field(default=0.2, ge=0, le=1)
    """Smallest share of the smaller vocabulary that a translating drafter must have in common with the target."""
    local: tuple[SourceKind | Literal["head"], ...] = ()
    """Sources inside this process, tried in this order before any drafter; `head`, the target's head, is the last."""
    head: Path | None = None
    """Folder of a draft head of the target, a `speculators`, EAGLE-3 or Medusa checkpoint. It drafts in place of
    drafters for requests that name none."""
    drafter_head: Path | None = None
    """Folder of a draft head of the target that drafters of kind `head` run, to which the verifier sends the features
    that the head reads."""
    sources: SourceSettings = SourceSettings()
    discovery: DiscoverySettings = DiscoverySettings()
    gamma: Annotated[
        Annotated[int, Field(ge=0)] | Literal["auto", "optimal", "egag"] | dict[str, Any], AfterValidator(_check_gamma)
    ] = "auto"
    """Default draft length of requests: a number, `auto`, `optimal`, `egag`, or an object with a policy and its fields,
    as in requests. `auto` uses measured costs and acceptance."""
    lenience: float = Field(default=1.0, gt=0, le=1)
    """Default lenience of requests in mode rejection; below 1, answers are lossy and are marked as such."""
    tree: TreeSettings | None = None
    """Draft trees of greedy requests that set neither a draft length nor trees; None drafts chains."""
    gamma_max: int = Field(default=16, ge=0, le=64)
    """Largest draft length."""
    drafting: DraftingSettings = DraftingSettings()
    chunk_tokens: int = Field(default=512, ge=1)
    """Largest number of prompt tokens in one pass, in addition to the tokens of sessions that decode."""
    draft_tokens: int = Field(default=512, ge=1)
    """Largest number of drafted tokens in one pass over all sessions; the longest drafts are shortened to fit."""
    step_sessions: int | None = Field(default=None, ge=1)
    """Largest number of decoding sessions in one pass; more sessions take turns. None sets no limit."""
    kv_bytes: int = Field(default=2**30, ge=1)
    """Memory for all keys and values in bytes, including those cached for later sessions."""
    threads: int = Field(default=1, ge=1)
    """Number of threads of PyTorch."""
    wide_threads: int | None = Field(default=None, ge=1)
    """Number of threads in passes over 6 or more tokens, for the backend `native`; None uses `threads`."""
    max_waiting: int = Field(default=4096, ge=1)
    """Number of generations that may wait for KV; further ones are refused."""
    drain_seconds: float = Field(default=20.0, ge=0)
    """Seconds for which running generations continue after a request to stop; then the gateway moves them."""

    @property
    def draft_length(self) -> tuple[int | None, GammaPolicy]:
        """Default draft length of requests, None if it is not fixed, and their default policy."""
        return parse_gamma(self.gamma)

    @model_validator(mode="after")
    def _keeps_limits(self) -> Self:
        """Refuse defaults that no request could ask for."""
        try:
            self.draft_length[1].check_limit(self.gamma_max)
        except GammaTooLarge as error:
            raise ValueError(error.message.removeprefix("speculation.")) from error
        if self.head is None and "head" in self.local:
            raise ValueError("local: `head` needs the folder of a head in `head`")
        if self.head is not None and self.backend == "transformers":
            raise ValueError(f"head: the backend {self.backend} runs no head")
        if self.drafter_head is not None and self.backend != "native":
            raise ValueError(f"drafter_head: the backend {self.backend} computes no features")
        if self.drafter_head is not None and self.head is not None:
            raise ValueError("drafter_head: the head drafts in the verifier if `head` is set, or else in drafters")
        if self.vllm.adapters and self.backend != "vllm":
            name = "lora_modules" if self.vllm.lora_modules else "lora"
            raise ValueError(f"vllm.{name}: the backend {self.backend} serves no adapters")
        if self.tree is not None and self.backend != "native":
            raise ValueError(f"tree: the backend {self.backend} judges no trees")
        return self
