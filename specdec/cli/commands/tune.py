"""`specdec tune`: try draft lengths, modes and sources on the user's prompts, and recommend settings."""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import typer
import yaml
from rich.console import Console
from rich.table import Table

from specdec.cli import options
from specdec.cli.client import GatewayClient
from specdec.cli.commands.compare import Comparison, Generate, both_ways
from specdec.client.collect import collect
from specdec.client.connection import GatewayConnection
from specdec.client.events import PromptRequest
from specdec.errors import ConfigError
from specdec.rules.speculation import Mode

LENGTHS: tuple[int | None, ...] = (None, 2, 4, 8)
"""Draft lengths to try; None is `auto`."""
_MODES = (Mode.REJECTION, Mode.BLOCK, Mode.COUPLED)


@dataclass(frozen=True, slots=True)
class Candidate:
    """Settings to try."""

    gamma: int | None
    """Draft length; None is `auto`."""
    mode: Mode | None = None
    """None is the server's default."""
    drafter: str = ""
    """Drafter or draft source; empty lets the server choose."""

    def of(self, request: PromptRequest) -> PromptRequest:
        """A copy of the request with these settings."""
        return replace(request, gamma=self.gamma, mode=self.mode, drafter=self.drafter)

    @property
    def settings(self) -> dict[str, Any]:
        """The settings by the names that the chart and the services share."""
        mode = {} if self.mode is None else {"mode": self.mode.value}
        drafter = {"drafter": self.drafter} if self.drafter else {}
        return {"gamma": "auto" if self.gamma is None else self.gamma, **mode, **drafter}

    def __str__(self) -> str:
        return ", ".join(f"{name} {value}" for name, value in self.settings.items())


PLAIN = Candidate(0)
"""No drafts."""


@dataclass(frozen=True, slots=True)
class Trial:
    """Candidate settings and the speed of every prompt with them."""

    candidate: Candidate
    ratios: tuple[float, ...]
    """Speed relative to decoding without drafts, for each prompt."""
    identical: bool
    """Whether every prompt gave the same tokens as without drafts."""

    @property
    def gain(self) -> float:
        """Median of the ratios."""
        return median(self.ratios)


def read_prompts(file: Path) -> list[str]:
    """Read the prompts of a file: one per line, as text, or as JSON with a `prompt` if the name ends in .jsonl.

    Raises:
        ConfigError: the file cannot be read, or has no prompt.
    """
    try:
        lines = [line for line in file.read_text(encoding="utf-8").splitlines() if line.strip()]
        prompts = [str(json.loads(line)["prompt"]) for line in lines] if file.suffix == ".jsonl" else lines
    except OSError as error:
        raise ConfigError(f"{file}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{file}: every line must be a JSON object with a prompt") from error
    if not prompts:
        raise ConfigError(f"{file} has no prompt")
    return prompts


def tune(
    generate: Generate, requests: Sequence[PromptRequest], drafters: Sequence[str], tried: Callable[[Trial], object]
) -> list[Trial]:
    """Try draft lengths for every drafter, then other modes for the best. Return the trials, the fastest first.

    At temperature 0 all modes keep the same drafts, so no other mode is tried.
    """
    first, *others = _MODES if requests[0].temperature != 0 else (None,)
    trials = [_try(generate, requests, Candidate(gamma, first, name), tried) for name in drafters for gamma in LENGTHS]
    best = max(trials, key=lambda trial: trial.gain).candidate
    trials += [_try(generate, requests, replace(best, mode=mode), tried) for mode in others]
    return sorted(trials, key=lambda trial: -trial.gain)


def _try(
    generate: Generate, requests: Sequence[PromptRequest], candidate: Candidate, tried: Callable[[Trial], object]
) -> Trial:
    """Run every prompt without drafts and with the candidate's drafts, after a warm-up with the first prompt."""
    pairs = [both_ways(candidate.of(request)) for request in requests]
    for warm_up in pairs[0]:
        generate(warm_up)
    runs = [Comparison(drafted, (generate(off),), (generate(drafted),)) for off, drafted in pairs]
    ratios = tuple(ratio for run in runs for ratio in run.ratios)
    if not ratios:
        raise ConfigError("every answer ended before it could be timed: give longer prompts, or a larger --max-tokens")
    trial = Trial(candidate, ratios, all(run.identical for run in runs))
    tried(trial)
    return trial


def recommended(trials: Sequence[Trial]) -> Candidate:
    """The fastest candidate that is faster for at least three quarters of the prompts; PLAIN if none is."""
    found = _paying(trials)
    return PLAIN if found is None else found.candidate


def _paying(trials: Sequence[Trial]) -> Trial | None:
    return next((each for each in trials if 4 * sum(ratio <= 1.0 for ratio in each.ratios) <= len(each.ratios)), None)


def flags(candidate: Candidate) -> str:
    """The flags of `specdec up` for these settings."""
    names = {"drafter": "default-drafter"}
    return " ".join(f"--{names.get(name, name)} {value}" for name, value in candidate.settings.items())


def config_files(candidate: Candidate) -> str:
    """Configuration for `specdec serve`, as YAML by service."""
    gateway = {} if candidate.mode is None else {"gateway": {"mode": candidate.mode.value}}
    verifier = {name: value for name, value in candidate.settings.items() if name != "mode"}
    return yaml.safe_dump({"verifier": verifier, **gateway}, sort_keys=False)


def chart_values(candidate: Candidate) -> str:
    """Values of the chart, as YAML."""
    return yaml.safe_dump({"speculation": candidate.settings}, sort_keys=False)


def command(
    prompts: Annotated[Path, typer.Argument(help="File of prompts, one a line; .jsonl for objects with a prompt.")],
    limit: Annotated[int, typer.Option(min=1, help="Most prompts of the file to use.")] = 8,
    max_tokens: options.MaxTokens = options.DEFAULT_TOKENS,
    temperature: options.Temperature = None,
    drafter: Annotated[
        list[str] | None, typer.Option(help="A source of drafts to try; repeatable.", show_default="the server's")
    ] = None,
    address: options.Address = options.DEFAULT_ADDRESS,
    api_key: options.ApiKey = "",
    ca: options.Authority = None,
    as_json: options.Json = False,
) -> None:
    """Run prompts through draft lengths, modes and sources, and recommend settings for this machine."""
    texts = read_prompts(prompts)[:limit]
    requests = [PromptRequest(text, max_tokens, temperature, seed=index) for index, text in enumerate(texts)]
    console, log = Console(), Console(stderr=True)
    with closing(GatewayClient(GatewayConnection(address, api_key, ca))) as gateway:
        trials = tune(
            lambda request: collect(gateway.stream(request)),
            requests,
            drafter or [""],
            lambda trial: log.print(f"{trial.candidate}: {trial.gain:.2f} times", highlight=False),
        )
    if as_json:
        console.out(json.dumps(report(trials), indent=2), highlight=False)
        return
    console.print(_table(trials))
    for line in advice(trials):
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def report(trials: Sequence[Trial]) -> dict[str, Any]:
    """The JSON output: the trials and the recommendation."""
    chosen = recommended(trials)
    return {
        "trials": [
            {
                "settings": trial.candidate.settings,
                "speedup": trial.gain,
                "speedup_range": [min(trial.ratios), max(trial.ratios)],
                "identical": trial.identical,
            }
            for trial in trials
        ],
        "recommended": {"flags": flags(chosen), "speculation": chosen.settings},
    }


def advice(trials: Sequence[Trial]) -> Iterator[str]:
    """Lines with the recommendation: the measured speed, then flags, configuration files and chart values."""
    chosen, best = recommended(trials), _paying(trials) or trials[0]
    measured = f"{best.gain:.2f} times ({min(best.ratios):.2f} to {max(best.ratios):.2f}, {len(best.ratios)} prompts)"
    if chosen is PLAIN:
        yield f"Drafts do not pay for these prompts here: the best, {best.candidate}, reached {measured}."
    else:
        yield f"Recommended: {chosen}. Speed over that without drafts: {measured}."
    yield f"\nspecdec up {flags(chosen)}\n"
    yield f"# files of specdec serve, by service\n{config_files(chosen)}"
    yield f"# values of the chart\n{chart_values(chosen)}"


def _table(trials: Sequence[Trial]) -> Table:
    table = Table("settings", "speed", "range", "same tokens as without drafts")
    for trial in trials:
        spread = f"{min(trial.ratios):.2f} to {max(trial.ratios):.2f}"
        table.add_row(str(trial.candidate), f"{trial.gain:.2f}", spread, "yes" if trial.identical else "no")
    return table
