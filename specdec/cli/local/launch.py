"""Start the planned processes: the stores, then the services, each with its configuration file and its log."""

import os
import shlex
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml

from specdec.cli.exit_codes import StartFailed, Unreachable
from specdec.cli.local import health, valkey, vllm
from specdec.cli.local.plan import NICE, PRELOAD, STORE_NICE, Role, Service
from specdec.cli.local.processes import Child, ChildCommand, Children
from specdec.cli.local.serve import command_of, with_defaults
from specdec.cli.local.signals import Stop
from specdec.errors import ConfigError

_POLL = 0.1


@dataclass(frozen=True, slots=True)
class Folders:
    """Folders for files of a run."""

    runtime: Path
    """Private to the owner and removed at the end."""
    logs: Path


@dataclass(frozen=True, slots=True)
class RunningService:
    """A started service and its process."""

    service: Service
    child: Child

    def healthy(self) -> bool:
        return health.healthy(self.service.role, self.service.http, self.service.grpc)


def start_store(children: Children, folders: Folders, embedded: valkey.Embedded) -> Child:
    name, restart = embedded.name, shlex.join(embedded.argv)
    log = folders.logs / f"{name}.log"
    command = ChildCommand(name, embedded.role, embedded.argv, log, restart, nice=STORE_NICE)
    return children.start(command, os.environ)


def write_config(folders: Folders, service: Service) -> Path:
    """Write a service's configuration file, which only its owner can read."""
    config = folders.runtime / f"{service.name}.yaml"
    config.touch(0o600)
    config.write_text(yaml.safe_dump(service.config, sort_keys=False), encoding="utf-8")
    return config


def command_line(role: Role, config: Path) -> str:
    """The command line to start a service by hand."""
    return shlex.join(["specdec", "serve", role, "--config", str(config)])


def start_service(children: Children, folders: Folders, service: Service) -> RunningService:
    command = _command(folders, service)
    scratch = folders.runtime / "tmp"  # so that temporary files of libraries are removed with the runtime folder
    scratch.mkdir(mode=0o700, exist_ok=True)
    environment = with_defaults(environment_of(service, os.environ)) | {"TMPDIR": str(scratch)}
    if service.python is not None:
        environment |= vllm.environment(service.python, environment)
    return RunningService(service, children.start(command, environment))


def _command(folders: Folders, service: Service) -> ChildCommand:
    config, log = write_config(folders, service), folders.logs / f"{service.name}.log"
    argv = command_of(service.role, config)
    if service.python is not None:
        argv = (str(service.python), *argv[1:])
        return ChildCommand(service.name, service.role, argv, log, restart=shlex.join(argv))
    restart = command_line(service.role, config)
    return ChildCommand(service.name, service.role, argv, log, restart, PRELOAD[service.role], NICE[service.role])


def environment_of(service: Service, inherited: Mapping[str, str]) -> dict[str, str]:
    """The inherited environment without variables that would override a setting of the configuration file."""
    prefix = f"SPECDEC_{service.role.upper()}_"
    overriding = {prefix + name for name in _variables(service.config)}
    return {name: value for name, value in inherited.items() if name.upper() not in overriding}


def _variables(config: Mapping[str, Any], before: str = "") -> Iterator[str]:
    """Names of all settings as environment variables, without the service's prefix."""
    for key, value in config.items():
        name = before + key.upper()
        yield name
        if isinstance(value, Mapping):
            yield from _variables(value, f"{name}__")


def wait_for_store(child: Child, url: str, stop: Stop) -> None:
    """Wait until the store answers.

    Raises:
        StartFailed: the store ended, or does not answer in time.
        StopRequested: a stop signal arrived.
    """
    for _ in _ticks(stop, 30.0):
        if valkey.answers(url):
            return
        if child.exit_status is not None:
            raise StartFailed(_ended(child))
    raise StartFailed(f"{child.command.name} does not answer; the last it wrote:\n{child.log_tail()}")


def wait_for_services(services: Sequence[RunningService], stop: Stop, timeout: float) -> Iterator[RunningService]:
    """Yield each service when it becomes healthy.

    Raises:
        StartFailed: a service ended, or not all are healthy within `timeout` seconds.
        StopRequested: a stop signal arrived.
    """
    waiting = list(services)
    for _ in _ticks(stop, timeout):
        for running in list(waiting):
            if running.child.exit_status is not None:
                raise StartFailed(_ended(running.child))
            if running.healthy():
                waiting.remove(running)
                yield running
        if not waiting:
            return
    late = waiting[0].child
    raise StartFailed(
        f"{late.command.name} is not healthy after {timeout:.0f} s; the last it wrote:\n{late.log_tail()}"
    )


def check_given_store(url: str, option: str = "--redis-url") -> None:
    """Check that an existing store answers; `option` is the command-line option of its URL.

    Raises:
        ConfigError: the URL is not a Redis URL.
        Unreachable: the store does not answer. No message repeats the password.
    """
    try:
        answers = valkey.answers(url)
    except ValueError as error:
        message = f"the Redis URL of {option} must begin with redis://, rediss:// or unix:// and be well formed"
        raise ConfigError(message) from error
    if not answers:
        parts = urlsplit(url)
        place = f"{parts.hostname or ''}:{parts.port or 6379}" if parts.scheme != "unix" else parts.path
        environment = " and REDIS_URL" if option == "--redis-url" else ""
        raise Unreachable(f"no Redis answers at {place}: start it, or leave {option}{environment} out")


def _ticks(stop: Stop, timeout: float) -> Iterator[None]:
    """Yield every `_POLL` seconds until the timeout has passed; raise StopRequested after a stop signal."""
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        stop.check()
        yield
        stop.wait(_POLL)


def _ended(child: Child) -> str:
    name, status = child.command.name, child.exit_status
    if error := child.error():
        return f"{name} did not start: {error}"
    return f"{name} ended with status {status} before it was healthy; the last it wrote:\n{child.log_tail()}"
