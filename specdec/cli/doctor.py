"""`specdec doctor`: each service looks its own configuration over, and what only shows between them is checked here."""

import json
import re
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from specdec.cli import health
from specdec.cli.exit_codes import ExitCode
from specdec.cli.plan import MODULES, Role
from specdec.cli.serve import command_of
from specdec.errors import ConfigError
from specdec.serving.checks import Check, Status

_CHECK_SECONDS = 120
_FINGERPRINT = re.compile(r".*\b([0-9a-f]{64})\b")  # the last one: a path before it may hold others
_ADDRESS = re.compile(r"[\w.:\[\]-]+:\d+")


@dataclass(frozen=True, slots=True)
class Subject:
    """A service and the configuration to look over."""

    role: Role
    config: Path
    environment: Mapping[str, str]


def subjects(
    folder: Path | None, files: Mapping[Role, Sequence[Path]], environment: Mapping[str, str]
) -> list[Subject]:
    """The configurations that were named, and those of a folder, told by how their names begin, as `verifier-2.yaml`.

    Raises:
        ConfigError: the folder holds none.
    """
    named = [Subject(role, path, environment) for role, paths in files.items() for path in paths]
    if folder is None:
        return named
    found = [Subject(role, path, environment) for role in MODULES for path in sorted(folder.glob(f"{role}*.yaml"))]
    if not found:
        raise ConfigError(f"--config-dir {folder} holds no drafter*.yaml, verifier*.yaml or gateway*.yaml")
    return [*named, *found]


def examine(subjects: Sequence[Subject]) -> list[Check]:
    """Every service's own checks, then those between the services."""
    with ThreadPoolExecutor(max_workers=2) as pool:
        checks = [check for found in pool.map(_ask, subjects) for check in found]
    return [*checks, *agreement(checks)]


def agreement(checks: Iterable[Check]) -> list[Check]:
    """Whether all that have a tokenizer have the same one; nothing when fewer than two say theirs."""
    prints = {
        check.source: match[1]
        for check in checks
        if check.name == "tokenizer" and (match := _FINGERPRINT.match(check.detail))
    }
    if len(prints) < 2:
        return []
    if len(set(prints.values())) == 1:
        return [Check.ok("tokenizers agree", f"{len(prints)} services, one fingerprint", "specdec")]
    detail = ", ".join(f"{source} has {value[:12]}" for source, value in prints.items())
    remedy = "give every service models with the same tokenizer: drafts of another one are refused"
    return [Check.fail("tokenizers agree", detail, remedy, "specdec")]


def parse(source: str, output: str) -> list[Check]:
    """The checks a service printed, one JSON object a line; other lines are not ours to judge."""
    return [_check(source, line) for line in output.splitlines() if line.startswith("{") and '"status"' in line]


def show(console: Console, checks: Sequence[Check], as_json: bool) -> None:
    """Print every check, and what to do under those that are not ok."""
    if as_json:
        console.out(json.dumps([asdict(check) for check in checks], indent=2), highlight=False)
        return
    styles = {Status.OK: "green", Status.WARN: "yellow", Status.FAIL: "bold red"}
    for check in checks:
        console.print(f"{check.status:<6}", style=styles[check.status], end="")
        line = f"{check.source:<12} {check.name}: {check.detail}"
        console.print(line, markup=False, highlight=False, soft_wrap=True)
        if check.remedy and check.status is not Status.OK:
            console.print(f"      what to do: {check.remedy}", markup=False, highlight=False, soft_wrap=True)
    counts = [f"{sum(check.status is status for check in checks)} {status}" for status in Status]
    console.print(", ".join(counts), highlight=False)


def failed(checks: Iterable[Check]) -> bool:
    """Whether anything must be mended."""
    return any(check.status is Status.FAIL for check in checks)


def _ask(subject: Subject) -> list[Check]:
    source = subject.config.stem
    try:
        ran = subprocess.run(
            command_of(subject.role, subject.config, "check"),
            capture_output=True,
            text=True,
            timeout=_CHECK_SECONDS,
            env=dict(subject.environment),
            check=False,
        )
    except subprocess.TimeoutExpired:
        return [Check.fail("check", f"no answer in {_CHECK_SECONDS} s", "look at the machine's load", source)]
    checks = [_running_already(check) for check in parse(source, ran.stdout)]
    if ran.returncode == 0 or any(check.status is Status.FAIL for check in checks):
        return checks
    said = ran.stderr.strip().splitlines() or [f"status {ran.returncode}"]
    broken = f"look at it with python -m {MODULES[subject.role]} check --config {subject.config}"
    remedy = f"mend {subject.config}" if ran.returncode == ExitCode.USAGE else broken
    return [*checks, Check.fail("check", said[-1].removeprefix("error: "), remedy, source)]


def _running_already(check: Check) -> Check:
    """A port that is taken by a healthy service is as it should be: most likely it is the one that was looked over."""
    asks = {"address": health.grpc_serving, "http": health.http_ready}
    place = _ADDRESS.search(check.detail)
    if check.status is not Status.WARN or check.name not in asks or not place or not asks[check.name](place[0]):
        return check
    return Check.ok(check.name, f"a healthy service listens on {place[0]} already", check.source)


def _check(source: str, line: str) -> Check:
    values: dict[str, Any] = json.loads(line)
    status = Status(values["status"])
    return Check(str(values["name"]), status, str(values["detail"]), str(values.get("remedy") or ""), source)
