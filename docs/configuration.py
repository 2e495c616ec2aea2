"""Writes docs/configuration.md from the settings themselves: `make docs`."""

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from drafter_service.config import DrafterSettings
from gateway.config import GatewaySettings
from gateway.ratio_controller.config import RatioSettings
from specdec.cli.settings import UpSettings
from specdec.serving.settings import Settings
from verifier_service.config import VerifierSettings

PAGE = Path(__file__).with_name("configuration.md")

INTRODUCTION = """\
# Configuration

Made by `make docs` from the settings themselves.

Every process takes flags or a `--config FILE` (YAML), and reads its environment. Flags win over the environment, the
environment over the file, the file over secrets of the container, those over the defaults. A nested setting is
`section: {name: value}` in a file and `PREFIX_SECTION__NAME` in the environment; a secret is a file
`/run/secrets/PREFIX_NAME`. NAME in a setting stands for a name of your own. An unknown or wrong setting stops the
process with one line that names it.
"""

SERVICES: tuple[tuple[str, type[Settings]], ...] = (
    ("specdec up", UpSettings),
    ("specdec serve drafter", DrafterSettings),
    ("specdec serve verifier", VerifierSettings),
    ("specdec serve gateway", GatewaySettings),
    ("specdec serve ratio-controller", RatioSettings),
)


def page() -> str:
    """The whole page."""
    return "\n".join([INTRODUCTION, *(_service(command, settings) for command, settings in SERVICES)])


def _service(command: str, settings: type[Settings]) -> str:
    rows = "\n".join(f"| `{name}` | {default} | {meaning} |" for name, default, meaning in _rows(settings, ""))
    prefix = settings.model_config["env_prefix"]
    return f"## `{command}`\n\nEnvironment: `{prefix}*`\n\n| setting | default | meaning |\n|---|---|---|\n{rows}\n"


def _rows(settings: type[BaseModel], prefix: str) -> Iterator[tuple[str, str, str]]:
    for name, field in settings.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from _rows(field.annotation, f"{prefix}{name}.")
        elif get_origin(field.annotation) is Mapping and issubclass(get_args(field.annotation)[1], BaseModel):
            yield from _rows(get_args(field.annotation)[1], f"{prefix}{name}.NAME.")
        else:
            yield prefix + name, _default(field), " ".join((field.description or "").split())


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "*required*"
    value = field.default
    if field.default_factory or value is None or value == () or not str(value):
        return ""
    return f"`{', '.join(value)}`" if isinstance(value, tuple) else f"`{value}`"


if __name__ == "__main__":
    sys.exit(0 if PAGE.write_text(page(), encoding="utf-8") else 1)
