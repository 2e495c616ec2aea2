"""`specdec doctor`: each service checks its own configuration; settings that must agree between services are checked
here.

Without any configuration, the defaults of `specdec up` are checked.
"""

import json
import os
import re
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from rich.console import Console

from specdec.cli.exit_codes import ExitCode, StartFailed, Unreachable
from specdec.cli.local import health, launch, plan, ports, stores
from specdec.cli.local.launch import Folders
from specdec.cli.local.plan import MODULES, Role
from specdec.cli.local.ports import Wanted
from specdec.cli.local.processes import Children
from specdec.cli.local.runtime import runtime_folder
from specdec.cli.local.serve import command_of
from specdec.cli.local.signals import Stop
from specdec.cli.local.stores import Chosen, Stores
from specdec.cli.settings import UpSettings
from specdec.errors import ConfigError
from specdec.serving.checks import Check, Status

_CHECK_SECONDS = 120
_FINGERPRINT = re.compile(r".*\b([0-9a-f]{64})\b")  # the last one: a path before it may hold others
_ADDRESS = re.compile(r"[\w.:\[\]-]+:\d+")
_STYLES = {Status.OK: "green", Status.WARN: "yellow", Status.FAIL: "bold red"}
_ANY_PORT = "127.0.0.1:0"
_HTTP_OPTIONS = {"--http", "--drafter-metrics", "--verifier-metrics"}
_ADDRESSES = ("http", "grpc", "drafter_address", "verifier_address", "drafter_metrics", "verifier_metrics")


@dataclass(frozen=True, slots=True)
class Subject:
    """A service and the configuration to check."""

    role: Role
    config: Path
    environment: Mapping[str, str]


def subjects(
    folder: Path | None, files: Mapping[Role, Sequence[Path]], environment: Mapping[str, str]
) -> list[Subject]:
    """The configurations in `files` and those in `folder`, whose names begin with the role, as in `verifier-2.yaml`.

    Raises:
        ConfigError: the folder holds no configuration.
    """
    named = [Subject(role, path, environment) for role, paths in files.items() for path in paths]
    if folder is None:
        return named
    found = [Subject(role, path, environment) for role in MODULES for path in sorted(folder.glob(f"{role}*.yaml"))]
    if not found:
        raise ConfigError(f"--config-dir {folder} holds no drafter*.yaml, verifier*.yaml or gateway*.yaml")
    return [*named, *found]


def examine(subjects: Sequence[Subject]) -> list[Check]:
    """Run the checks of every service, then the checks between services."""
    with ThreadPoolExecutor(max_workers=2) as pool:
        checks = [check for found in pool.map(_check, subjects) for check in found]
    return [*checks, *agreement(checks)]


def examine_defaults(settings: UpSettings) -> list[Check]:
    """Check the ports, models and stores that `specdec up` would use, then run the checks of each service."""
    checks = [*map(_port, plan.wanted(settings)), _models(settings)]
    if failed(checks[-1:]):
        return checks
    with runtime_folder() as folder, Children() as children:
        folders = Folders(folder, folder)
        found, used = _stores(settings, folders, children)
        checks += found
        if used:
            checks += filter(_is_about_defaults, examine(_default_subjects(settings, folders, used)))
    return checks


def agreement(checks: Iterable[Check]) -> list[Check]:
    """Check that all services with a tokenizer have the same one; empty if fewer than two report a tokenizer."""
    prints = {
        check.source: match[1]
        for check in checks
        if check.name == "tokenizer" and (match := _FINGERPRINT.match(check.detail))
    }
    if len(prints) < 2:
        return []
    if len(set(prints.values())) == 1:
        return [_ours("tokenizers agree", None, f"{len(prints)} services, one fingerprint")]
    detail = ", ".join(f"{source} has {value[:12]}" for source, value in prints.items())
    remedy = "give every service models with the same tokenizer: drafts of another one are refused"
    return [_ours("tokenizers agree", remedy, detail)]


def parse(source: str, output: str) -> list[Check]:
    """Parse the checks that a service printed, one JSON object per line; other lines are ignored."""
    lines = [line for line in output.splitlines() if line.startswith("{") and '"status"' in line]
    told = (json.loads(line) for line in lines)
    return [Check(**each | {"status": Status(each["status"]), "source": source}) for each in told]


def show(console: Console, checks: Sequence[Check], as_json: bool) -> None:
    """Print every check, with its remedy if it is not ok."""
    if as_json:
        console.out(json.dumps([asdict(check) for check in checks], indent=2), highlight=False)
        return
    for check in checks:
        console.print(f"{check.status:<6}", style=_STYLES[check.status], end="")
        text = f"{check.source:<12} {check.name}: {check.detail}"
        console.print(text, markup=False, highlight=False, soft_wrap=True)
        if check.remedy and check.status is not Status.OK:
            console.print(f"      what to do: {check.remedy}", markup=False, highlight=False, soft_wrap=True)
    counts = [f"{sum(check.status is status for check in checks)} {status}" for status in Status]
    console.print(", ".join(counts), highlight=False)


def failed(checks: Iterable[Check]) -> bool:
    return any(check.status == "fail" for check in checks)


def _ours(name: str, remedy: str | None, detail: str) -> Check:
    """Create a check of this command; it fails if there is a `remedy`."""
    return Check.fail(name, detail, remedy, "specdec") if remedy else Check.ok(name, detail, "specdec")


def _check(subject: Subject) -> list[Check]:
    """Run a service's check of its configuration in a separate process."""
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
    if ran.returncode == 0 or failed(checks):
        return checks
    said = ran.stderr.strip().splitlines() or [f"status {ran.returncode}"]
    broken = f"look at it with python -m {MODULES[subject.role]} check --config {subject.config}"
    remedy = f"mend {subject.config}" if ran.returncode == ExitCode.USAGE else broken
    return [*checks, Check.fail("check", said[-1].removeprefix("error: "), remedy, source)]


def _running_already(check: Check) -> Check:
    """Turn a warning about a taken port into ok if a healthy service listens there, probably the checked service."""
    healthy = {"address": health.grpc_serving, "http": health.http_ready}
    address = _ADDRESS.search(check.detail)
    if (
        check.status is not Status.WARN
        or check.name not in healthy
        or not address
        or not healthy[check.name](address[0])
    ):
        return check
    return Check.ok(check.name, f"a healthy service listens on {address[0]} already", check.source)


def _port(wanted: Wanted) -> Check:
    """Check that the first address of one kind is free, or that a healthy service listens there."""
    name, address = f"port {wanted.option}", wanted.base
    try:
        ports.allot([replace(wanted, count=1, exact=True)])
    except ConfigError as error:
        healthy = health.http_ready if wanted.option in _HTTP_OPTIONS else health.grpc_serving
        if healthy(address):
            return _ours(name, None, f"{address} has a healthy service already")
        if not wanted.exact:
            return _ours(name, None, f"{address} is taken, and any free port replaces it")
        return _ours(name, "stop what listens there, or move", error.message)
    return _ours(name, None, f"{address} is free")


def _models(settings: UpSettings) -> Check:
    try:
        plan.check_models(settings)
    except ConfigError as error:
        return _ours("models", "give the folders with --target and --drafter", error.message)
    return _ours("models", None, f"{settings.target} and {settings.drafter}")


def _stores(settings: UpSettings, folders: Folders, children: Children) -> tuple[list[Check], Stores | None]:
    """Start the stores like `specdec up`, for the duration of the checks; None if a store is not usable."""
    try:
        chosen = stores.choose(settings)
        used = stores.configure(chosen, settings.model_copy(update={"data": None}), folders.runtime)
        started = [(launch.start_store(children, folders, each), each.url) for each in used.embedded]
        for store, url in started:
            launch.wait_for_store(store, url, Stop())
    except (ConfigError, StartFailed, Unreachable) as error:
        remedy = "give stores that run with REDIS_URL and --kv-redis-url, or --no-kv"
        return [_ours("stores", remedy, error.message)], None
    binary = chosen.binary
    program = f"{binary.path.name} {binary.version}, {binary.origin}, starts" if binary else ""
    sessions = "the one of --redis-url or REDIS_URL answers" if settings.redis_url else program
    return [_ours("session store", None, sessions), _kv_store(chosen, settings, program)], used


def _kv_store(chosen: Chosen, settings: UpSettings, program: str) -> Check:
    if chosen.lacking:
        return replace(Check.warn("KV store", chosen.lacking, "give one with --kv-redis-url"), source="specdec")
    if chosen.starts_kv:
        return _ours("KV store", None, f"{program} with {settings.kv_memory.human_readable()}")
    given = "the one of --kv-redis-url answers"
    return _ours("KV store", None, given if settings.kv_redis_url else "switched off by --no-kv")


def _is_about_defaults(check: Check) -> bool:
    """Whether a check is unrelated to the ports chosen for the checks and to services that are not started."""
    name = check.name
    return name not in {"http", "address"} and not name.startswith(("drafter ", "verifier "))


def _default_subjects(settings: UpSettings, folders: Folders, used: Stores) -> list[Subject]:
    """One configuration of each role, on free ports; the ports of the settings are checked separately."""
    addresses = dict.fromkeys(_ADDRESSES, _ANY_PORT)
    one_each = settings.model_copy(update={**addresses, "drafters": 1, "verifiers": 1, "gateways": 1})
    found = []
    for service in plan.services(one_each, plan.allot(one_each), used.sessions, used.kv):
        config = launch.write_config(folders, replace(service, name=service.role))
        found.append(Subject(service.role, config, launch.environment_of(service, os.environ)))
    return found
