"""What `specdec doctor` looks at when it is given no configuration: what `specdec up` would do."""

import os
from collections.abc import Iterator
from pathlib import Path

import yaml

from specdec.cli import doctor, health, launch, plan, ports, valkey
from specdec.cli.doctor import Subject
from specdec.cli.exit_codes import StartFailed, Unreachable
from specdec.cli.launch import Folders
from specdec.cli.processes import Children
from specdec.cli.runtime import runtime_folder
from specdec.cli.settings import UpSettings
from specdec.cli.signals import Stop
from specdec.errors import ConfigError
from specdec.serving.checks import Check

_ANYWHERE = {
    "http": "127.0.0.1:0",
    "grpc": "127.0.0.1:0",
    "drafter_address": "127.0.0.1:0",
    "verifier_address": "127.0.0.1:0",
}


def examine_defaults(settings: UpSettings) -> list[Check]:
    """Ports, models and session store as `specdec up` would have them, and each service's own checks."""
    checks = [*_ports(settings), _models(settings)]
    if doctor.failed(checks[-1:]):
        return checks
    with runtime_folder() as folder, Children() as children:
        store, url = _store(settings, Folders(folder, folder), children)
        checks.append(store)
        if not doctor.failed([store]):
            checks += filter(_is_about_defaults, doctor.examine(_subjects(settings, folder, url)))
    return checks


def _ports(settings: UpSettings) -> Iterator[Check]:
    for role, option, address in (
        ("gateway", "--http", settings.http),
        ("gateway-grpc", "--grpc", settings.grpc),
        ("drafter", "--drafter-address", settings.drafter_address),
        ("verifier", "--verifier-address", settings.verifier_address),
    ):
        yield _port(role, option, address)


def _port(role: str, option: str, address: str) -> Check:
    try:
        ports.allot([ports.Wanted(option, address, 1)])
    except ConfigError as error:
        if health.check_of(role, address, address)():
            return Check.ok(f"port {option}", f"{address} has a healthy service already", "specdec")
        return Check.fail(f"port {option}", error.message, "stop what listens there, or move", "specdec")
    return Check.ok(f"port {option}", f"{address} is free", "specdec")


def _models(settings: UpSettings) -> Check:
    try:
        plan.check_models(settings)
    except ConfigError as error:
        return Check.fail("models", error.message, "give the folders with --target and --drafter", "specdec")
    return Check.ok("models", f"{settings.target} and {settings.drafter}", "specdec")


def _store(settings: UpSettings, folders: Folders, children: Children) -> tuple[Check, str]:
    """Bring the session store up as `up` would, for as long as the checks take."""
    given = valkey.given_url(settings.redis_url, os.environ)
    try:
        if given:
            launch.check_given_store(given)
            return Check.ok("session store", "the one of --redis-url or REDIS_URL answers", "specdec"), given
        binary = valkey.resolve()
        embedded = valkey.embed(binary, folders.runtime)
        launch.wait_for_store(launch.start_store(children, folders, embedded), embedded.url, Stop())
    except (ConfigError, StartFailed, Unreachable) as error:
        return Check.fail("session store", error.message, "give one that runs with REDIS_URL", "specdec"), ""
    detail = f"{binary.path.name} {binary.version}, {binary.origin}, starts"
    return Check.ok("session store", detail, "specdec"), embedded.url


def _is_about_defaults(check: Check) -> bool:
    """Not about the ports that were made up for the look, nor about services that nobody has started behind them."""
    return check.name not in {"http", "address"} and not check.name.startswith(("drafter ", "verifier "))


def _subjects(settings: UpSettings, folder: Path, url: str) -> list[Subject]:
    """One configuration of each role, on free ports: those that were asked for have been looked at."""
    one_each = settings.model_copy(update={**_ANYWHERE, "drafters": 1, "verifiers": 1, "gateways": 1})
    found = []
    for service in plan.services(one_each, plan.allot(one_each), url):
        config = folder / f"{service.role}.yaml"
        config.touch(0o600)
        config.write_text(yaml.safe_dump(service.config), encoding="utf-8")
        found.append(Subject(service.role, config, launch.environment_of(service, os.environ)))
    return found
