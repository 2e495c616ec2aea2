"""The options of the commands, each defined once."""

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from specdec.errors import ConfigError
from specdec.rules.params import Mode

DEFAULT_ADDRESS = "127.0.0.1:50051"
DEFAULT_TOKENS = 128


def _option(help_text: str, *names: str, otherwise: str = "", **extra: Any) -> Any:
    """An option that is None unless given; `otherwise` is the default that the help shows."""
    return typer.Option(*names, help=help_text, show_default=otherwise or False, **extra)


Prompt = Annotated[str, typer.Argument(help="Text to go on from.")]
Address = Annotated[str, typer.Option(help="The gateway's gRPC API, host:port.", envvar="SPECDEC_ADDRESS")]
MaxTokens = Annotated[int, typer.Option(min=1, help="Longest output.")]
Temperature = Annotated[float | None, _option("0 is greedy.", otherwise="the server's")]
TopP = Annotated[float | None, _option("Nucleus mass in (0, 1].", otherwise="the server's")]
Seed = Annotated[int | None, _option("Makes a run repeatable.", otherwise="random", min=0)]
Gamma = Annotated[int | None, _option("Draft length.", otherwise="automatic", min=0)]
Lenience = Annotated[
    float | None, _option("Below 1 keeps more drafts and is lossy; for --mode rejection.", otherwise="1, exact")
]
ModeOption = Annotated[Mode | None, _option("How drafts are verified.", otherwise="the server's")]
NoSpeculation = Annotated[bool, typer.Option("--no-speculation", help="Plain decoding, as --mode off.")]
Json = Annotated[bool, typer.Option("--json", help="One JSON document in place of text.")]

Config = Annotated[Path | None, _option("YAML file.")]
Http = Annotated[str | None, _option("First gateway's OpenAI API.", otherwise="127.0.0.1:8000", metavar="HOST:PORT")]
Grpc = Annotated[str | None, _option("First gateway's gRPC API.", otherwise=DEFAULT_ADDRESS, metavar="HOST:PORT")]
DrafterAddress = Annotated[str | None, _option("First drafter.", otherwise="127.0.0.1:50052", metavar="HOST:PORT")]
VerifierAddress = Annotated[str | None, _option("First verifier.", otherwise="127.0.0.1:50053", metavar="HOST:PORT")]
DrafterMetrics = Annotated[
    str | None, _option("First drafter's metrics.", otherwise="127.0.0.1:8100", metavar="HOST:PORT")
]
VerifierMetrics = Annotated[
    str | None, _option("First verifier's metrics.", otherwise="127.0.0.1:8200", metavar="HOST:PORT")
]
Target = Annotated[Path | None, _option("Large model's folder.", otherwise="models/demo/target")]
Drafter = Annotated[Path | None, _option("Small model's folder.", otherwise="models/demo/drafter")]
DrafterKind = Annotated[Literal["model", "ngram", "prompt_lookup"] | None, _option("What drafts.", otherwise="model")]
ModelName = Annotated[str | None, _option("What callers call the model.", otherwise="from the folder")]
Drafters = Annotated[int | None, _option("How many; 0 is plain decoding.", otherwise="1")]
Verifiers = Annotated[int | None, _option("How many.", otherwise="1")]
Gateways = Annotated[int | None, _option("How many.", otherwise="1")]
RedisUrl = Annotated[
    str | None, _option("A session store that runs already.", otherwise="REDIS_URL, or one of its own")
]
Data = Annotated[
    Path | None, _option("Keep the sessions of a store of its own here.", otherwise="they go at the end", metavar="DIR")
]
Kv = Annotated[bool | None, _option("Keep keys and values in a second Redis.", "--kv/--no-kv", otherwise="kv")]
KvMemory = Annotated[str | None, _option("Of its own KV store.", otherwise="512MiB", metavar="SIZE")]
KvRedisUrl = Annotated[str | None, _option("A KV store that runs already.", otherwise="one of its own")]
State = Annotated[Path | None, _option("Write what runs into this file, as JSON.", metavar="FILE")]
Sample = Annotated[bool | None, _option("Stream one completion first.", "--sample/--no-sample", otherwise="sample")]
Dtype = Annotated[Literal["float32", "bfloat16"] | None, _option("Of both models.", otherwise="float32")]
Compile = Annotated[
    bool | None, _option("Compile both models: faster, after a longer start.", "--compile/--no-compile", otherwise="no")
]
Restarts = Annotated[int | None, _option("Of one process, in a row.", otherwise="5")]
LogDir = Annotated[Path | None, _option("Where logs go and stay.", otherwise="a folder that goes at the end")]

ConfigDir = Annotated[Path | None, _option("Folder with drafter*.yaml, verifier*.yaml, gateway*.yaml.")]
ServiceConfigs = Annotated[list[Path] | None, _option("YAML file of one process.")]

Sources = Annotated[
    list[str] | None,
    _option("Read the numbers from a /metrics URL of each replica, or from one Prometheus.", "--from", metavar="URL"),
]
Window = Annotated[int, typer.Option(min=1, help="Seconds that Prometheus looks back.")]
Alpha = Annotated[float | None, _option("Chance that a draft token is accepted.", min=0, max=1)]
DraftMs = Annotated[float | None, _option("One drafter step over its batch.", min=0)]
VerifyMs = Annotated[float | None, _option("One target pass over its batch, drafts included.", min=0)]
PlainMs = Annotated[float | None, _option("One target pass over its batch, no drafts.", otherwise="--verify-ms", min=0)]
RoundTripMs = Annotated[float | None, _option("Verifier to drafter and back.", otherwise="0", min=0)]
DraftBatch = Annotated[float | None, _option("Sessions in a drafter step.", min=0)]
VerifyBatch = Annotated[float | None, _option("Sessions in a target pass.", min=0)]
DraftBusy = Annotated[float, typer.Option(help="How busy drafters may be, 0..1.")]
VerifyBusy = Annotated[float, typer.Option(help="How busy verifiers may be, 0..1.")]
MinSpeedup = Annotated[float, typer.Option(help="Drafting that gains less than this is not worth it.")]


def mode_of(mode: Mode | None, no_speculation: bool) -> Mode | None:
    """The mode that --mode and --no-speculation ask for.

    Raises:
        ConfigError: the two contradict each other.
    """
    if no_speculation and mode not in {None, Mode.OFF}:
        raise ConfigError(f"--no-speculation and --mode {mode} contradict each other")
    return Mode.OFF if no_speculation else mode
