"""The settings of a verifier."""

from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, model_validator
from pydantic_settings import SettingsConfigDict

from specdec.errors import FieldInvalid, GammaTooLarge
from specdec.planning.gamma_policy import GammaPolicy, parse_gamma
from specdec.rules.speculation import MAX_DEPTH, MAX_NODES, TreeOptions
from specdec.serving.discovery import DiscoverySettings
from specdec.serving.rpc.access import NO_TOKEN, Token
from specdec.serving.rpc.tls import DialTlsSettings
from specdec.serving.settings import Address, ModelSettings, Section, Settings
from specdec.serving.telemetry.tracing import OtelSettings
from specdec.sources.maker import SourceKind
from specdec.sources.settings import SourceSettings


class DraftingSettings(Section):
    """How long drafts are waited for, when a drafter that failed is tried again, in seconds, and what is pushed."""

    timeout: float = Field(default=0.2, gt=0)
    """Longest wait for the draft of one round; where γ is chosen, no longer drafts are ordered than come within it."""
    probe: float = Field(default=1.0, gt=0)
    """After a wait that ended without a draft, rounds take what has come, and wait again only this much later."""
    overload_pause: float = Field(default=2.0, gt=0)
    """How long a session stays away from a drafter that has no room for it, or that failed."""
    outcomes: Annotated[int, Field(ge=0, le=64)] | Literal["auto"] = "auto"
    """Likely outcomes of each verdict that drafters push chains for while it is under way, as many as they can; 0 for
    none, and `auto` for 8 at each drafter that is far enough and has time. It hides the network, and takes a drafter
    about as much work as so many sessions."""
    groups: Annotated[int, Field(ge=1, le=2)] | Literal["auto"] = "auto"
    """Groups of sessions: with 2, one is drafted for while the other is verified, which pays where a pass over half of
    them takes about half as long; `auto` measures whether it does, and 1 verifies all sessions in every pass."""


_OWN_ARGUMENTS = (
    "model", "dtype", "worker_cls", "scheduler_cls", "speculative_config", "scheduling_policy", "async_scheduling",
    "skip_tokenizer_init", "disable_log_stats", "enable_lora", "pipeline_parallel_size", "data_parallel_size", "seed",
)  # fmt: skip
"""Arguments of vLLM's engine that the verifier sets itself, or cannot do with."""


def _check_engine_arguments(values: dict[str, Any]) -> dict[str, Any]:
    """The values, if none of them is the verifier's own; raises ValueError if not."""
    for name in _OWN_ARGUMENTS:
        if name in values:
            raise ValueError(f"{name!r} cannot be given here")
    return values


class VllmSettings(Section):
    """The target on vLLM; read where `backend` is `vllm`."""

    engine_args: Annotated[dict[str, Any], AfterValidator(_check_engine_arguments)] = Field(default_factory=dict)
    """Arguments of vLLM's engine by their names in Python, as in `tensor_parallel_size: 2` or `quantization: fp8`."""
    lora: Path | None = None
    """Folder of a LoRA adapter that every generation uses; None is the model as it is."""


def _check_gamma(value: Any) -> Any:
    """The value, if requests may write it as their draft length; raises ValueError if not."""
    try:
        parse_gamma(value)
    except FieldInvalid as error:
        raise ValueError(error.message.removeprefix("speculation.")) from error
    return value


class TreeSettings(Section):
    """Trees of drafts."""

    nodes: int = Field(ge=1, le=MAX_NODES)
    """Most drafted tokens in a round."""
    width: int = Field(ge=1, le=MAX_NODES)
    """Most children of a node that one drafter proposes."""
    depth: int = Field(ge=1, le=MAX_DEPTH)
    """Most drafted tokens on a path."""
    replacement: bool = False
    """Whether siblings are drawn independently; without it, none is drawn twice."""
    drafters: tuple[str, ...] = ()
    """Names of what drafts, each of which makes a tree of its own; empty is the one drafter."""

    @property
    def options(self) -> TreeOptions:
        """The trees as a request asks for them."""
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
    """What computes the target: the engine of this package; vLLM, which has an environment of its own; or transformers,
    one sequence at a time, which is slow, and runs encoder-decoders and decoders that `native` refuses."""
    vllm: VllmSettings = VllmSettings()
    address: Address = "127.0.0.1:50053"
    """Where the gRPC API listens."""
    http: Address = "127.0.0.1:0"
    """Where /metrics, /livez and /readyz listen."""
    otel: OtelSettings = OtelSettings()
    health: Address | None = None
    """A second address, always in plaintext and without a token, for grpc.health.v1 and reflection, which then leaves
    the first; none when None."""
    tls: DialTlsSettings = DialTlsSettings()
    token: Token = NO_TOKEN
    """Token that gateways must send, and that drafters are sent; everybody may call when empty."""
    drafters: tuple[Address, ...] = ()
    """A static list of drafters to connect to; with no drafter and no local source every token is plain."""
    drafters_expected: bool = True
    """Whether a drafter that has never answered counts as `drafter_unavailable`; otherwise it counts as `no_match`."""
    drafter: str = ""
    """What drafts for requests that do not choose: a source, or a drafter's kind, model or address; any when empty."""
    drafter_vocabulary: Literal["same", "translate"] = "same"
    """Whether a drafter must have the target's tokenizer, or may translate the tokens that both have in common."""
    least_overlap: float = Field(default=0.2, ge=0, le=1)
    """With `translate`, the share of the smaller vocabulary that a drafter must have in common with the target."""
    local: tuple[SourceKind, ...] = ()
    """Sources that this process asks itself, before any drafter and without one; the first with an answer drafts."""
    sources: SourceSettings = SourceSettings()
    discovery: DiscoverySettings = DiscoverySettings()
    gamma: Annotated[
        Annotated[int, Field(ge=0)] | Literal["auto", "optimal", "egag"] | dict[str, Any], AfterValidator(_check_gamma)
    ] = "auto"
    """Draft length of requests that do not choose: a number, `auto`, `optimal`, `egag`, or an object with a policy and
    its fields, as requests write it; `auto` follows measured costs and acceptance."""
    lenience: float = Field(default=1.0, gt=0, le=1)
    """Lenience of requests in mode rejection that do not choose; below 1 answers are lossy, and say so."""
    tree: TreeSettings | None = None
    """Trees that greedy requests draft unless they choose a draft length or other trees; None drafts chains."""
    gamma_max: int = Field(default=16, ge=0, le=64)
    """Largest draft length."""
    drafting: DraftingSettings = DraftingSettings()
    chunk_tokens: int = Field(default=512, ge=1)
    """Prompt tokens computed in one pass beside the sessions that decode."""
    draft_tokens: int = Field(default=512, ge=1)
    """Drafts judged in one pass, of all sessions together; where there are more, the longest are cut short."""
    step_sessions: int | None = Field(default=None, ge=1)
    """Most sessions that decode in one pass, which bounds its time; more of them take turns. None is all of them."""
    kv_bytes: int = Field(default=2**30, ge=1)
    """Budget of all keys and values, those kept for later sessions included."""
    threads: int = Field(default=1, ge=1)
    """Number of PyTorch's threads."""
    wide_threads: int | None = Field(default=None, ge=1)
    """The same where the backend is native, in passes over 64 tokens or more, as prompts are; None is no other."""
    max_waiting: int = Field(default=4096, ge=1)
    """Number of generations that may wait for KV before more are refused."""
    drain_seconds: float = Field(default=20.0, ge=0)
    """How long running generations may go on once the process is asked to stop; then the gateway moves them."""

    @property
    def draft_length(self) -> tuple[int | None, GammaPolicy]:
        """The fixed draft length of requests that do not choose, None where there is none, and their policy."""
        return parse_gamma(self.gamma)

    @model_validator(mode="after")
    def _keeps_limits(self) -> Self:
        """Refuse defaults that no request could ask for."""
        try:
            self.draft_length[1].check_limit(self.gamma_max)
        except GammaTooLarge as error:
            raise ValueError(error.message.removeprefix("speculation.")) from error
        if self.tree is not None and self.backend != "native":
            raise ValueError(f"tree: the backend {self.backend} judges no trees")
        return self
