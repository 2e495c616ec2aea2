"""The `specdec` command: parses the options, runs a command and exits; every error is one line on stderr."""

import os
import sys
import traceback
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from specdec.cli import options
from specdec.cli.commands import advise as advising
from specdec.cli.commands import chat as chatting
from specdec.cli.commands import compare as comparing
from specdec.cli.commands import counts as counting
from specdec.cli.commands import doctor as doctoring
from specdec.cli.commands import prove as proving
from specdec.cli.commands import run as running
from specdec.cli.commands import top as topping
from specdec.cli.commands import tune as tuning
from specdec.cli.commands.models import models
from specdec.cli.commands.train import train
from specdec.cli.commands.up import Up
from specdec.cli.exit_codes import EPILOG, ExitCode, exit_code
from specdec.cli.local import serve as serving
from specdec.cli.local.plan import Role
from specdec.cli.local.signals import StopRequested, stop_on_signals
from specdec.cli.settings import DEMO, UpSettings, find_model
from specdec.client.connection import GatewayConnection
from specdec.client.events import PromptRequest
from specdec.errors import ConfigError, SpecdecError
from specdec.rules.speculation import Mode
from specdec.serving.version import package_version

app = typer.Typer(
    pretty_exceptions_enable=False,
    epilog=EPILOG,
    help="Speculative decoding as a service: start it, use it, inspect it.",
)
app.add_typer(models, name="models")
app.add_typer(train, name="train")
app.command("chat", epilog=EPILOG)(chatting.command)
app.command("top", epilog=EPILOG)(topping.command)
app.command("tune", epilog=EPILOG)(tuning.command)


@app.callback(invoke_without_command=True)
def root(
    context: typer.Context,
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks; also SPECDEC_DEBUG=1.")] = False,
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    if version:
        typer.echo(f"specdec {package_version()}")
        raise typer.Exit()
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@app.command(epilog=EPILOG)
@options.from_settings(UpSettings)
def up(config: options.Config = None, **flags: Any) -> None:
    """Start everything on this machine and serve until Ctrl-C.

    Each option is also SPECDEC_UP_NAME in the environment and a name in the --config file; options win.
    """
    settings = UpSettings.load(config, {name: value for name, value in flags.items() if value is not None})
    with stop_on_signals() as stop:
        Up(Console(), settings, stop).run()


@app.command(epilog=EPILOG)
def serve(
    role: Annotated[serving.Servant, typer.Argument(help="Service to run.")],
    config: Annotated[Path, typer.Option(help="The service's YAML file.")],
) -> None:
    """Run one service in the foreground."""
    serving.serve(role, config)


@app.command(epilog=EPILOG)
def run(
    prompt: options.Prompt,
    show_draft: options.ShowDraft = False,
    explain: options.Explain = False,
    max_tokens: options.MaxTokens = options.DEFAULT_TOKENS,
    temperature: options.Temperature = None,
    top_p: options.TopP = None,
    seed: options.Seed = None,
    gamma: options.ChosenGamma = None,
    mode: options.ModeOption = None,
    lenience: options.Lenience = None,
    drafter: options.Drafter = "",
    tree: options.Tree = None,
    no_speculation: options.NoSpeculation = False,
    address: options.Address = options.DEFAULT_ADDRESS,
    api_key: options.ApiKey = "",
    ca: options.Authority = None,
    as_json: options.Json = False,
) -> None:
    """Stream one generation, with each token styled by its origin."""
    chosen = options.mode_of(mode, no_speculation)
    request = PromptRequest(
        prompt, max_tokens, temperature, top_p, seed, gamma, chosen, lenience, drafter, tree, detail=explain
    )
    running.run(Console(), GatewayConnection(address, api_key, ca), request, show_draft, as_json)


@app.command(epilog=EPILOG)
def compare(
    prompt: options.Prompt,
    max_tokens: options.MaxTokens = options.DEFAULT_TOKENS,
    temperature: options.Temperature = None,
    top_p: options.TopP = None,
    seed: options.Seed = None,
    gamma: options.ChosenGamma = None,
    mode: options.ModeOption = None,
    lenience: options.Lenience = None,
    drafter: options.Drafter = "",
    tree: options.Tree = None,
    runs: Annotated[
        int, typer.Option(min=2, help="Number of runs with drafts, and without; the median and the range are shown.")
    ] = 5,
    address: options.Address = options.DEFAULT_ADDRESS,
    api_key: options.ApiKey = "",
    ca: options.Authority = None,
    as_json: options.Json = False,
) -> None:
    """Run the same prompt with and without speculation, and say which was faster."""
    if mode is Mode.OFF:
        raise ConfigError("--mode off leaves nothing to compare")
    request = PromptRequest(prompt, max_tokens, temperature, top_p, seed, gamma, mode, lenience, drafter, tree)
    comparing.compare(Console(), GatewayConnection(address, api_key, ca), request, runs, as_json)


@app.command(epilog=EPILOG)
def advise(
    tokens_per_second: Annotated[float, typer.Argument(help="Output tokens a second, all sessions together.")],
    sources: options.Sources = None,
    window: options.Window = 300,
    alpha: options.Alpha = None,
    gamma: options.Gamma = None,
    draft_ms: options.DraftMs = None,
    verify_ms: options.VerifyMs = None,
    plain_ms: options.PlainMs = None,
    round_trip_ms: options.RoundTripMs = None,
    draft_batch: options.DraftBatch = None,
    verify_batch: options.VerifyBatch = None,
    draft_busy: options.DraftBusy = 0.8,
    verify_busy: options.VerifyBusy = 0.8,
    min_speedup: options.MinSpeedup = 1.0,
    drafter_cost: options.DrafterCost = None,
    draft_operations: options.DraftOperations = 0.0,
    as_json: options.Json = False,
) -> None:
    """Compute how many verifiers and drafters a throughput needs, and whether drafting and separate drafters pay.

    Numbers come from the options, or else from a running system (--from)."""
    given = {"alpha": alpha, "gamma": gamma, "draft_batch": draft_batch, "verify_batch": verify_batch}
    times = {"draft_step": draft_ms, "verify_pass": verify_ms, "plain_pass": plain_ms, "round_trip": round_trip_ms}
    given |= {name: None if time is None else time / 1000 for name, time in times.items()}
    known: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    numbers = replace(advising.read(sources or (), window), **known)
    policy = (verify_busy, draft_busy, min_speedup)
    advising.advise(Console(), tokens_per_second, numbers, policy, as_json, drafter_cost, draft_operations)


@app.command(epilog=EPILOG)
def counts(
    corpus: Annotated[Path, typer.Argument(help="UTF-8 text: a file, or a folder of files.")],
    out: Annotated[Path, typer.Option(help="Folder to write.")],
    tokenizer: Annotated[Path, typer.Option(help="Folder with the target's tokenizer.")] = DEMO / "target",
    order: Annotated[int, typer.Option(min=1, max=2, help="1 for unigrams, 2 for bigrams.")] = 2,
) -> None:
    """Count a text's tokens and pairs of tokens, for a drafter of kind `counts`."""
    tokens = counting.write(corpus, find_model(tokenizer), out, order)
    Console().print(f"{tokens} tokens are counted; serve them: specdec up --drafter-kind counts --drafter {out}")


@app.command(epilog=EPILOG)
def doctor(
    config_dir: options.ConfigDir = None,
    drafter_config: options.ServiceConfigs = None,
    verifier_config: options.ServiceConfigs = None,
    gateway_config: options.ServiceConfigs = None,
    as_json: options.Json = False,
) -> None:
    """Check configurations and suggest corrections; without any, check those that `specdec up` would use.

    The three options for files may be given several times.
    """
    files: dict[Role, Sequence[Path]] = {
        "drafter": drafter_config or (),
        "verifier": verifier_config or (),
        "gateway": gateway_config or (),
    }
    subjects = doctoring.subjects(config_dir, files, os.environ)
    findings = doctoring.examine(subjects) if subjects else doctoring.examine_defaults(UpSettings.load())
    doctoring.show(Console(), findings, as_json)
    if doctoring.failed(findings):
        raise typer.Exit(ExitCode.FAILED)


@app.command(epilog=EPILOG)
def prove(
    url: Annotated[str, typer.Option(help="Base URL of the deployment, as in http://127.0.0.1:8000.")],
    reference: Annotated[
        str, typer.Option(help="The same model without drafts, at any OpenAI-compatible server.", metavar="URL")
    ] = "",
    samples: Annotated[int, typer.Option(min=50, help="Sequences drawn from each side.")] = 400,
    alpha: Annotated[float, typer.Option(min=1e-5, max=0.5, help="False-alarm rate of the test.")] = 0.001,
    streams: Annotated[int, typer.Option(min=1, max=256, help="Number of concurrent requests.")] = 8,
    as_json: options.Json = False,
) -> None:
    """Test whether drafts change the output distribution of a deployment; exit status 1 if they do.

    Without --reference, the same deployment generates the reference without drafts. Only specdec's API allows that."""
    proof = proving.prove(proving.Plan(url, reference, samples, alpha, streams), proving.http)
    proving.show(Console(), proof, as_json)
    if proof.verdict != "exact":
        raise typer.Exit(ExitCode.FAILED)


def main() -> None:
    arguments = sys.argv[1:]
    debug = "--debug" in arguments or bool(os.environ.get("SPECDEC_DEBUG"))
    sys.exit(status_of([argument for argument in arguments if argument != "--debug"], debug))


def status_of(arguments: Sequence[str], debug: bool = False) -> int:
    """Run one command line and return its exit status."""
    try:
        return int(app(list(arguments), prog_name="specdec", standalone_mode=False) or ExitCode.OK)
    except StopRequested:
        return _refuse("stopped before everything was healthy", ExitCode.FAILED)
    except typer.TyperException as error:
        return _refuse(f"{error.format_message()} (see --help)", ExitCode.USAGE)
    except SpecdecError as error:
        if debug:
            traceback.print_exc()
        return _refuse(error.message, exit_code(error))
    except Exception as error:  # noqa: BLE001  # a bug is one line too, unless --debug is given
        if debug:
            traceback.print_exc()
        return _refuse(f"{type(error).__name__}: {error} (a bug; --debug shows where)", ExitCode.FAILED)


def _refuse(message: str, code: ExitCode) -> int:
    sys.stderr.write(f"error: {message}\n")
    return code
