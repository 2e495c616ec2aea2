"""The settings of `specdec up`; flags win over SPECDEC_UP_*, which win over the file, which wins over the defaults."""

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, ByteSize, Field, model_validator
from pydantic_settings import SettingsConfigDict

from specdec.cli import known_heads, known_models
from specdec.cli.known_models import KNOWN
from specdec.cli.options import DraftLength, Trees
from specdec.rules.speculation import Mode
from specdec.serving.addresses import Address
from specdec.serving.settings import Origins, Settings

_ROOT = Path(__file__).parents[2]
DEMO = Path("models/demo")
_SOURCES = ("ngram", "prompt_lookup", "suffix")
_HEAD = "head"
"""Source of a verifier that has a draft head."""


def check_sources(value: str, known: Sequence[str] = _SOURCES) -> str:
    """Return the value if it is a list of known sources; raises ValueError otherwise."""
    unknown = [name for name in source_names(value) if name not in known]
    if unknown:
        raise ValueError(f"there is no source {unknown[0]!r}, there are {', '.join(known)}")
    return value


def check_local(value: str) -> str:
    """Return the value if it is a list of sources inside a verifier; raises ValueError otherwise."""
    return check_sources(value, (*_SOURCES, _HEAD))


def source_names(value: str) -> list[str]:
    """The names in a comma-separated list."""
    return [name.strip() for name in value.split(",") if name.strip()]


class UpSettings(Settings):
    """Settings of `specdec up`; each is also a flag of the same name."""

    model_config = SettingsConfigDict(env_prefix="SPECDEC_UP_")

    http: Address = "127.0.0.1:8000"
    """Address of the first gateway's OpenAI-compatible API."""
    grpc: Address = "127.0.0.1:50051"
    """Address of the first gateway's gRPC API."""
    drafter_address: Address = "127.0.0.1:50052"
    """Address of the first drafter."""
    verifier_address: Address = "127.0.0.1:50053"
    """Address of the first verifier."""
    drafter_metrics: Address = "127.0.0.1:8100"
    """Address of the first drafter's metrics; the default gives way to a free port where it is taken."""
    verifier_metrics: Address = "127.0.0.1:8200"
    """Address of the first verifier's metrics; the default gives way to a free port where it is taken."""
    target: Path = DEMO / "target"
    """The large model: a folder, a name in `specdec models list`, or the id of a downloaded Hub model."""
    drafter: Path = DEMO / "drafter"
    """The small model, as `target` is given; for `counts`, the folder of a counts file."""
    drafter_kind: Literal["model", "head", "counts", "ngram", "prompt_lookup", "suffix", "hybrid", "random"] = "model"
    """Source of the drafters' drafts; only `model`, `hybrid` and `counts` need a folder, and `head` that of --head.
    For a known model's name no drafter is started unless one is asked for."""
    drafter_local: Annotated[str, AfterValidator(check_sources)] = ""
    """Sources that guess the drafts of a draft model, such as `suffix,ngram`: the model confirms several guesses in one
    step; only for drafters of kind `model`."""
    backend: Literal["native", "vllm", "transformers"] = "native"
    """Engine of the target: `native`, vLLM in the environment that `make vllm` creates, or transformers, which is slow
    and also runs the draft model. The default for an encoder-decoder is `transformers`, the only one that runs it."""
    vllm_python: Path = Path("build/vllm/.venv/bin/python")
    """Python interpreter of the environment with vLLM; used only with the backend `vllm`."""
    drafter_vocabulary: Literal["same", "translate"] = "same"
    """Whether drafters must have the target's tokenizer, or translate the tokens that both tokenizers have."""
    local: Annotated[str, AfterValidator(check_local)] = ""
    """Sources inside the verifiers, tried before any drafter, such as `suffix,ngram`: ngram, prompt_lookup, suffix, and
    head, which needs --head."""
    head: Path | None = None
    """Folder of a draft head of the target, a `speculators`, EAGLE-3 or Medusa checkpoint, or the name of one here. It
    drafts inside the verifiers, after the sources of --local, or in drafters of kind `head`. A known model has the head
    that is here, unless --local or a drafter is given."""
    sampled: bool = False
    """Whether the source `ngram` draws its drafts from its counts, with these as q̂, at temperatures above 0; otherwise
    it drafts the most frequent token."""
    default_drafter: str = ""
    """Default drafter of requests: a source, or a drafter's kind, model or address; any when empty."""
    served_model_name: str = ""
    """Name of the model for callers; the folder's name when empty."""
    generation_config: Literal["auto", "none"] = "auto"
    """Whether the target's generation_config.json has the sampling defaults of requests."""
    reasoning_parser: str = "auto"
    """Format of the model's thinking: `auto` reads the chat template; else `none`, a format, or a parser of vLLM."""
    cors_origins: Origins = ()
    """Origins of web pages whose scripts may call the HTTP API, comma-separated; `*` allows every origin."""
    drafters: int = Field(default=1, ge=0, le=64)
    """Number of drafters; without any, and without --local, every token comes from plain decoding."""
    verifiers: int = Field(default=1, ge=1, le=64)
    """Number of verifiers."""
    gateways: int = Field(default=1, ge=1, le=64)
    """Number of gateways."""
    redis_url: str = Field(default_factory=lambda: os.environ.get("REDIS_URL", ""))
    """URL of a running session store; when empty, REDIS_URL is used, or else a store is started."""
    data: Path | None = None
    """Folder in which the session store that is started keeps its sessions; when None, they end with the command."""
    kv: bool = True
    """Whether keys and values are kept in a Redis of their own, from which another verifier restores them."""
    kv_memory: ByteSize = Field(default=ByteSize(512 * 2**20), ge=16 * 2**20)
    """Memory of the KV store that is started, in bytes or as in `512MiB`; least recently used blocks are evicted."""
    kv_redis_url: str = ""
    """URL of a running KV store, not on the session store's server; when empty, one is started."""
    state: Path | None = None
    """File for the list of running processes, as JSON; none when None."""
    scrape_config: Path | None = None
    """File for a Prometheus configuration that scrapes every process; none when None."""
    sample: bool = True
    """Whether to stream one completion when every process is healthy."""
    api_keys: Path | None = None
    """File of API keys that the gateways ask for, a line `tenant: sha256:HEX` for each; None asks for no key."""
    gamma: DraftLength = None
    """Default draft length of requests: a number, `auto`, `optimal`, `egag`, or an object with a policy and its fields;
    `auto` when None."""
    lenience: float | None = Field(default=None, gt=0, le=1)
    """Default lenience of requests in mode rejection; below 1, answers are lossy. 1 when None."""
    tree: Trees = None
    """Trees of greedy requests that do not choose: an object with nodes, width and depth; chains when None."""
    mode: Mode | None = None
    """Verification rule; None is the services' default."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Data type of both models."""
    compile: bool = False
    """Compile both models: faster passes, for a longer start."""
    wide_threads: int | None = Field(default=None, ge=1)
    """Threads of a native target in passes over 6 tokens or more; None is 2, or 1 with one processor each."""
    log_dir: Path | None = None
    """Folder for the processes' logs; when None, one that is removed at the end."""
    restarts: int = Field(default=5, ge=0)
    """Largest number of consecutive restarts of a process that ends. A minute of running resets the count."""
    start_timeout: float = Field(default=180.0, gt=0)
    """Seconds within which every process must become healthy."""

    @model_validator(mode="before")
    @classmethod
    def _defaults_of_target(cls, given: Any) -> Any:
        """Set the defaults for a known model, for an encoder-decoder, and for a target with a head.

        None gets a drafter: the demo's does not fit, and a head takes its place. A known model drafts by local
        sources, then by its head if one that fits is here. An encoder-decoder runs on the backend `transformers`, the
        only one that computes it.
        """
        if isinstance(given, dict) and given.get("head") and not {"drafter", "drafter_kind", "drafters"} & given.keys():
            given = {"drafters": 0, **given}
        if not isinstance(given, dict) or not given.get("target"):
            return given
        target, defaults = Path(str(given["target"])), dict[str, Any]()
        known = KNOWN.get(str(target))
        encodes = is_encoder_decoder(find_model(target))
        if (known is not None or encodes) and not {"drafter", "drafter_kind"} & given.keys():
            defaults = {"drafters": 0, "drafter_kind": "prompt_lookup"}
        if known is not None and defaults:
            defaults["local"] = known.local
            defaults["head"] = _known_head(target)[0] if _takes_known_head(given) else None
        if encodes:
            defaults["backend"] = "transformers"
        return defaults | given

    @model_validator(mode="after")
    def _check_drafter_local(self) -> Self:
        if self.drafter_local and self.drafter_kind != "model":
            raise ValueError(f"drafter_local is for drafters of kind model, and drafter_kind is {self.drafter_kind}")
        return self

    @property
    def unused_head(self) -> str:
        """A line on a known target's head that is here and does not fit the target; empty if there is none."""
        known = KNOWN.get(str(self.target))
        chosen = known is None or self.head is not None or self.drafters or self.local != known.local
        return "" if chosen else _known_head(self.target)[1]

    @property
    def served_name(self) -> str:
        """Name of the served model; for a folder called `target`, the name of its parent."""
        folder = find_model(self.target)
        if self.served_model_name or folder == known_models.find(str(self.target)):
            return self.served_model_name or str(self.target)
        folder = folder.resolve()
        return folder.parent.name if folder.name == "target" else folder.name


def _takes_known_head(given: Mapping[str, Any]) -> bool:
    """Whether settings for a known target without a drafter leave the choice of its head open."""
    local = given.get("local")
    if given.get("drafters", 0) or given.get("backend", "native") != "native":
        return False
    return local is None or _HEAD in source_names(str(local))


def _known_head(target: Path) -> tuple[Path | None, str]:
    """The head of a known target that fits it; else None, and why the head that is here is not used."""
    head, folder = known_heads.find(str(target)), find_model(target)
    if head is None or not (folder / "config.json").is_file():
        return None, ""
    why = known_heads.misfit(head, folder)
    return (None, f"the head {head} is not used: {why}") if why else (head, "")


def is_encoder_decoder(folder: Path) -> bool:
    """Whether the folder's config.json is that of an encoder-decoder; False if it cannot be read."""
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(config, dict) and bool(config.get("is_encoder_decoder"))


def find_model(path: Path) -> Path:
    """Find the folder of a model: the path itself, else the path in this checkout, else the model of that name.

    A folder takes precedence over a name. Returns `path` if none of them exists.
    """
    for folder in (path, _ROOT / path):
        if folder.exists():
            return folder
    return known_models.find(str(path)) or path
