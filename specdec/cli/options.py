"""The options of the commands, each defined once; those of `specdec up` are its settings."""

import json
import re
from collections.abc import Callable, Mapping
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_type_hints

import typer
from pydantic import BaseModel, BeforeValidator, ByteSize
from pydantic.fields import FieldInfo
from pydantic_settings import NoDecode

from specdec.errors import ConfigError, FieldInvalid
from specdec.planning.gamma_policy import AUTO, GammaPolicy, parse_gamma
from specdec.rules.speculation import Mode, TreeOptions
from specdec.serving.addresses import Address as HostPort
from specdec.serving.addresses import parse_address
from specdec.serving.settings import Origins

Command = TypeVar("Command", bound=Callable[..., None])

DEFAULT_ADDRESS = "127.0.0.1:50051"
DEFAULT_TOKENS = 128


def gamma_of(value: Any) -> int | None:
    """The draft length in a text; None for `auto`. Raises ValueError for anything else."""
    if value in (None, "auto"):
        return None
    if re.fullmatch("[0-9]{1,9}", str(value)):
        return int(value)
    raise ValueError(f"must be a whole number, or auto, got {value!r}")


def policy_of(value: str) -> int | GammaPolicy | None:
    """Parse a draft length: a number, the name of a policy, or a JSON object.

    Raises:
        ValueError: the text is none of these.
    """
    try:
        fixed, policy = parse_gamma(json.loads(value) if value[:1] in tuple("{0123456789") else value)
    except FieldInvalid as error:
        raise ValueError(error.message) from error
    if fixed is not None and policy != AUTO:
        raise ValueError("a fixed length has no min_confidence here")
    return policy if fixed is None and policy != AUTO else fixed


def tree_of(value: str | Mapping[str, Any]) -> TreeOptions:
    """The trees that an object describes, which may be in JSON; raises ValueError when it describes none."""
    try:
        fields: dict[str, Any] = {**(json.loads(value) if isinstance(value, str) else value)}
        return TreeOptions(**fields | {"drafters": tuple(fields.get("drafters", ()))})
    except FieldInvalid as error:
        raise ValueError(error.message) from error
    except (TypeError, AttributeError) as error:
        raise ValueError("must be an object with nodes, width and depth, and no field that the API has not") from error


def default_gamma(value: Any) -> Any:
    """A draft length as the API takes it, of a text or of a value in a file; raises ValueError for anything else."""
    text = isinstance(value, str) and value[:1] in tuple("{0123456789")
    try:
        written = json.loads(value) if text else value
        parse_gamma(written)
    except FieldInvalid as error:
        raise ValueError(error.message.removeprefix("speculation.")) from error
    return written


def default_tree(value: Any) -> TreeOptions | None:
    """Trees as the API takes them, of a text or of a value in a file; raises ValueError for anything else."""
    return value if value is None or isinstance(value, TreeOptions) else tree_of(value)


DraftLength = Annotated[int | str | dict[str, Any] | None, BeforeValidator(default_gamma)]
"""A setting for a draft length, as requests write it."""
Trees = Annotated[TreeOptions | None, NoDecode, BeforeValidator(default_tree)]
"""A setting for trees."""


def _option(help_text: str, *names: str, otherwise: str = "", **extra: Any) -> Any:
    """An option that is None unless given; `otherwise` is the default that the help shows."""
    return typer.Option(*names, help=help_text, show_default=otherwise or False, **extra)


Prompt = Annotated[str, typer.Argument(help="Prompt, which the model continues.")]
Address = Annotated[
    str,
    typer.Option(
        help="The gateway's gRPC API, host:port.", envvar="SPECDEC_ADDRESS", parser=parse_address, metavar="HOST:PORT"
    ),
]
ApiKey = Annotated[
    str,
    typer.Option(
        help="API key; in the environment, where the list of processes does not show it.",
        envvar="SPECDEC_API_KEY",
        show_default=False,
    ),
]
Authority = Annotated[
    Path | None,
    _option("PEM file of the authority of the gateway's certificate.", otherwise="plaintext", envvar="SPECDEC_CA"),
]
MaxTokens = Annotated[int, typer.Option(min=1, help="Largest number of output tokens.")]
Temperature = Annotated[float | None, _option("0 is greedy.", otherwise="the server's")]
TopP = Annotated[float | None, _option("Nucleus mass in (0, 1].", otherwise="the server's")]
Seed = Annotated[int | None, _option("Seed of all random numbers, for a repeatable run.", otherwise="random", min=0)]
Gamma = Annotated[int | None, _option("Draft length.", otherwise="auto", parser=gamma_of, metavar="N|auto")]
ChosenGamma = Annotated[
    Any | None,
    _option(
        "Draft length, or the policy that chooses it; JSON has the fields of the API.",
        "--gamma",
        otherwise="auto",
        parser=policy_of,
        metavar="N|auto|optimal|egag|JSON",
    ),
]
Drafter = Annotated[str, typer.Option(help="Name of a drafter or draft source.", show_default="the server's")]
Tree = Annotated[
    Any | None,
    _option(
        "Draft trees: an object with nodes, width and depth, and other fields of the API.",
        otherwise="chains",
        parser=tree_of,
        metavar="JSON",
    ),
]
Lenience = Annotated[
    float | None,
    _option("Below 1, more drafts are accepted and the output is lossy; for --mode rejection.", otherwise="1, exact"),
]
ModeOption = Annotated[Mode | None, _option("How drafts are verified.", otherwise="the server's")]
NoSpeculation = Annotated[bool, typer.Option("--no-speculation", help="Decode without drafts; same as --mode off.")]
ShowDraft = Annotated[bool, typer.Option("--show-draft", help="Show rejected drafts, struck through.")]
Explain = Annotated[bool, typer.Option("--explain", help="Show the numbers behind each round's verdict: p, q and u.")]
Session = Annotated[str, typer.Option(help="Id of the session to continue.", show_default="a new one")]
User = Annotated[str, typer.Option(help="User of the session; other users cannot continue it.", show_default=False)]
Processes = Annotated[list[str] | None, _option("The /metrics URL of a process.", "--from", metavar="URL")]
StateFile = Annotated[Path | None, _option("State file of `specdec up --state`; shows all its processes.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of text.")]

Config = Annotated[Path | None, _option("YAML file.")]
ConfigDir = Annotated[Path | None, _option("Folder with drafter*.yaml, verifier*.yaml, gateway*.yaml.")]
ServiceConfigs = Annotated[list[Path] | None, _option("YAML file of one process.")]

Sources = Annotated[
    list[str] | None,
    _option("Read the numbers from a /metrics URL of each replica, or from one Prometheus.", "--from", metavar="URL"),
]
Window = Annotated[int, typer.Option(min=1, help="Time window of the Prometheus queries, in seconds.")]
Alpha = Annotated[float | None, _option("Probability that a drafted token is accepted.", min=0, max=1)]
DraftMs = Annotated[float | None, _option("Milliseconds of one drafter step over its batch.", min=0)]
VerifyMs = Annotated[float | None, _option("Milliseconds of one target pass over its batch with drafts.", min=0)]
PlainMs = Annotated[
    float | None,
    _option("Milliseconds of one target pass over its batch without drafts.", otherwise="--verify-ms", min=0),
]
RoundTripMs = Annotated[float | None, _option("Milliseconds from verifier to drafter and back.", otherwise="0", min=0)]
DraftBatch = Annotated[float | None, _option("Sessions in a drafter step.", min=0)]
VerifyBatch = Annotated[float | None, _option("Sessions in a target pass.", min=0)]
DraftOperations = Annotated[
    float, typer.Option(help="Operations of a draft step divided by those of a target step (ĉ).", min=0)
]
DraftBusy = Annotated[float, typer.Option(help="Planned utilization of drafters, 0..1.")]
VerifyBusy = Annotated[float, typer.Option(help="Planned utilization of verifiers, 0..1.")]
DrafterCost = Annotated[float | None, typer.Option(help="Cost of a drafter divided by that of a verifier.", min=0)]
MinSpeedup = Annotated[float, typer.Option(help="Smallest speed-up at which drafting is recommended.")]

_METAVARS = {
    HostPort: "HOST:PORT",
    ByteSize: "SIZE",
    Origins: "ORIGINS",
    DraftLength: "N|auto|optimal|egag|JSON",
    Trees: "JSON",
}
"""Placeholder in help texts, for value types that are read as text."""


def from_settings(settings: type[BaseModel]) -> Callable[[Command], Command]:
    """Give a command, in place of its `**flags`, an option for each setting; it is None unless given.

    Groups of settings have no options.
    """
    kinds = get_type_hints(settings, include_extras=True)

    def option(name: str, field: FieldInfo) -> Parameter:
        metavar = _METAVARS.get(kinds[name])
        kind: Any = str if metavar else field.annotation
        info = _option(str(field.description), otherwise=_shown(name, field), metavar=metavar)
        return Parameter(name, Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[kind | None, info])

    def decorated(command: Command) -> Command:
        *own, _ = signature(command).parameters.values()
        plain = {
            name: field for name, field in settings.model_fields.items() if not isinstance(field.default, BaseModel)
        }
        vars(command)["__signature__"] = Signature([*own, *(option(*each) for each in plain.items())])
        return command

    return decorated


def _shown(name: str, field: FieldInfo) -> str:
    """The default as the help shows it; empty when the description tells what happens without the setting."""
    match field.default:
        case bool():
            return name if field.default else f"no-{name}"
        case ():
            return ""
        case ByteSize():
            return field.default.human_readable()
        case default:
            return "" if default is None or field.default_factory else str(default)


def mode_of(mode: Mode | None, no_speculation: bool) -> Mode | None:
    """The mode that --mode and --no-speculation ask for.

    Raises:
        ConfigError: the two contradict each other.
    """
    if no_speculation and mode not in {None, Mode.OFF}:
        raise ConfigError(f"--no-speculation and --mode {mode} contradict each other")
    return Mode.OFF if no_speculation else mode
