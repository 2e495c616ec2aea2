"""From a plan to running processes: the store, then the services, each with its configuration file and its log."""

import os
import shlex
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml

from specdec.cli import health, valkey
from specdec.cli.exit_codes import StartFailed, Unreachable
from specdec.cli.plan import Role, Service
from specdec.cli.processes import Child, Children, Command
from specdec.cli.serve import command_of
from specdec.cli.signals import Stop
from specdec.errors import ConfigError

_POLL = 0.1


@dataclass(frozen=True, slots=True)
class Folders:
    """Where things are written; `runtime` is private and short-lived."""

    runtime: Path
    logs: Path


@dataclass(frozen=True, slots=True)
class Running:
    """A started service and where it listens."""

    service: Service
    child: Child

    def healthy(self) -> bool:
        """Whether it answers and serves."""
        return health.check_of(self.service.role, self.service.http, self.service.grpc)()


def start_store(children: Children, folders: Folders, embedded: valkey.Embedded) -> Child:
    """Start the session store."""
    again = shlex.join(embedded.argv)
    command = Command("redis-1", "redis", embedded.argv, folders.logs / "redis-1.log", again)
    return children.start(command, os.environ)


def write_config(folders: Folders, service: Service) -> Path:
    """Write a service's configuration, readable by its owner alone."""
    config = folders.runtime / f"{service.name}.yaml"
    config.touch(0o600)
    config.write_text(yaml.safe_dump(service.config, sort_keys=False), encoding="utf-8")
    return config


def command_line(role: Role, config: Path) -> str:
    """What a person types to start a service of ours."""
    return shlex.join(["specdec", "serve", role, "--config", str(config)])


def start_service(children: Children, folders: Folders, service: Service) -> Running:
    """Write a service's configuration and start it."""
    config = write_config(folders, service)
    command = Command(
        name=service.name,
        role=service.role,
        argv=command_of(service.role, config),
        log=folders.logs / f"{service.name}.log",
        again=command_line(service.role, config),
    )
    scratch = folders.runtime / "tmp"  # what libraries leave behind goes with the rest
    scratch.mkdir(mode=0o700, exist_ok=True)
    environment = environment_of(service, os.environ) | {"TMPDIR": str(scratch)}
    return Running(service, children.start(command, environment))


def environment_of(service: Service, inherited: Mapping[str, str]) -> dict[str, str]:
    """The environment without the variables that would overrule what the configuration file settles."""
    prefix = f"SPECDEC_{service.role.upper()}_"
    settled = {prefix + name for name in _variables(service.config)}
    return {name: value for name, value in inherited.items() if name.upper() not in settled}


def _variables(config: Mapping[str, Any], before: str = "") -> Iterator[str]:
    for key, value in config.items():
        name = before + key.upper()
        yield name
        if isinstance(value, Mapping):
            yield from _variables(value, f"{name}__")


def wait_for_store(child: Child, url: str, stop: Stop) -> None:
    """Return when the store answers.

    Raises:
        StartFailed: it ended, or is silent for too long.
        StopRequested: the wait was cut short.
    """
    for _ in _ticks(stop, 30.0):
        if valkey.answers(url):
            return
        if child.exit_status is not None:
            raise StartFailed(_ended(child))
    raise StartFailed(f"redis-1 does not answer; the last it wrote:\n{child.log_tail()}")


def wait_for_services(services: Sequence[Running], stop: Stop, timeout: float) -> Iterator[Running]:
    """Each service as it becomes healthy.

    Raises:
        StartFailed: one ended, or not all are healthy in `timeout` seconds.
        StopRequested: the wait was cut short.
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


def check_given_store(url: str) -> None:
    """Make sure that a store somebody else runs is there.

    Raises:
        ConfigError: the URL is none of Redis.
        Unreachable: it does not answer; neither message repeats the password.
    """
    try:
        answers = valkey.answers(url)
    except ValueError as error:
        raise ConfigError("the Redis URL must begin with redis://, rediss:// or unix:// and be well formed") from error
    if not answers:
        parts = urlsplit(url)
        place = f"{parts.hostname or ''}:{parts.port or 6379}" if parts.scheme != "unix" else parts.path
        raise Unreachable(f"no Redis answers at {place}: start it, or leave --redis-url and REDIS_URL out")


def _ticks(stop: Stop, timeout: float) -> Iterator[None]:
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        stop.check()
        yield
        stop.wait(_POLL)


def _ended(child: Child) -> str:
    status = child.exit_status
    return (
        f"{child.command.name} ended with status {status} before it was healthy; the last it wrote:\n{child.log_tail()}"
    )
