"""`specdec up`: everything on this machine, as separate processes, until it is told to stop."""

import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console

from specdec.cli import launch, plan, state, valkey
from specdec.cli.client import Gateway, drafter_states
from specdec.cli.events import Request
from specdec.cli.exit_codes import StartFailed
from specdec.cli.launch import Folders, Running
from specdec.cli.processes import Child, Children
from specdec.cli.run import show
from specdec.cli.runtime import runtime_folder
from specdec.cli.settings import UpSettings
from specdec.cli.signals import Stop
from specdec.errors import ConfigError, SpecdecError
from specdec.wire.generation import DrafterState

SAMPLE = Request("import os\nimport sys\n\n\ndef main(", max_tokens=96, temperature=0.0, seed=0)
_WATCH = 0.2
_DRAFTER_TRIES = 50


class Up:
    """One run of the command."""

    def __init__(self, console: Console, settings: UpSettings, stop: Stop) -> None:
        self._console = console
        self._settings = settings
        self._stop = stop

    def run(self, given_redis: str) -> None:
        """Start, show, serve, and end everything again.

        Args:
            given_redis: URL of a session store that runs already; empty to bring one along.

        Raises:
            ConfigError: something is wrong before anything was started.
            StartFailed: a process did not become healthy, or none is left.
            Unreachable: the given session store does not answer.
            StopRequested: the signal came before everything was healthy.
        """
        addresses, binary = self._look_ahead(given_redis)
        with runtime_folder() as runtime, Children() as children:
            folders = Folders(runtime, self._logs(runtime))
            embedded = valkey.embed(binary, runtime) if binary else None
            services = plan.services(self._settings, addresses, embedded.url if embedded else given_redis)
            with self._console.status("starting"):
                store = self._start_store(children, folders, embedded) if embedded else None
                running = self._start_services(children, folders, services)
            with self._state_file(store, running):
                self._sample(running)
                self._show_addresses(running, folders)
                self._say("Serving until Ctrl-C.")
                self._watch(children)
            self._say("Stopping.")

    def _look_ahead(self, given_redis: str) -> tuple[plan.Addresses, valkey.Binary | None]:
        """Find every mistake that can be found before anything is started."""
        plan.check_models(self._settings)
        self._check_state_folder()
        addresses = plan.allot(self._settings)
        if given_redis:
            launch.check_given_store(given_redis)
        binary = None if given_redis else valkey.resolve()
        if self._settings.state:
            state.remove(self._settings.state)  # an older one would be taken for ours
        return addresses, binary

    def _start_store(self, children: Children, folders: Folders, embedded: valkey.Embedded) -> Child:
        store = launch.start_store(children, folders, embedded)
        launch.wait_for_store(store, embedded.url, self._stop)
        self._say("redis-1 is healthy")
        return store

    def _start_services(self, children: Children, folders: Folders, services: Sequence[plan.Service]) -> list[Running]:
        running = [launch.start_service(children, folders, service) for service in services]
        for ready in launch.wait_for_services(running, self._stop, self._settings.start_timeout):
            self._say(f"{ready.service.name} is healthy")
        if self._settings.drafters:
            self._report_drafters(running)
        else:
            self._offer_drafter(folders)
        return running

    def _offer_drafter(self, folders: Folders) -> None:
        """Say how a drafter can join."""
        later = plan.later_drafter(self._settings)
        command = launch.command_line("drafter", launch.write_config(folders, later))
        self._say(f"no drafter: every token is plain until one listens at {later.grpc}. Start it: {command}")

    def _report_drafters(self, running: Sequence[Running]) -> None:
        """Wait until every verifier knows its drafters, and say which it will not draft with, and why."""
        for verifier in (each.service for each in running if each.service.role == "verifier"):
            for drafter in self._settled_drafters(verifier.grpc):
                if drafter.state != "ready":
                    self._say(f"warning: {verifier.name} has no use of drafter {drafter.address}: {drafter.state}")

    def _settled_drafters(self, verifier: str) -> list[DrafterState]:
        for _ in range(_DRAFTER_TRIES):
            drafters = drafter_states(verifier)
            if all(drafter.state != "connecting" for drafter in drafters):
                break
            self._stop.wait(0.1)
            self._stop.check()
        return drafters

    @contextmanager
    def _state_file(self, store: Child | None, running: Sequence[Running]) -> Iterator[None]:
        path = self._settings.state
        if path is None:
            yield
            return
        entries = [state.Entry("redis", store.pid, None, None)] if store else []
        for each in running:
            entries.append(state.Entry(each.service.role, each.child.pid, each.service.http, each.service.grpc))
        state.write(path, entries)
        try:
            yield
        finally:
            state.remove(path)

    def _show_addresses(self, running: Sequence[Running], folders: Folders) -> None:
        self._say("")
        for service in (each.service for each in running):
            match service.role:
                case "gateway":
                    what = f"OpenAI API http://{service.http}/v1 · gRPC {service.grpc}"
                case _:
                    what = f"gRPC {service.grpc} · metrics http://{service.http}/metrics"
            self._say(f"{service.name:<12} {what}")
        self._say(f"{'model':<12} {self._settings.served_name}")
        self._say(f"{'logs':<12} {folders.logs}")
        self._say("")

    def _sample(self, running: Sequence[Running]) -> None:
        if not self._settings.sample:
            return
        self._say(f"\nA sample, going on from:\n{SAMPLE.prompt}\n")
        address = next(each.service.grpc for each in running if each.service.role == "gateway")
        with Gateway(address) as gateway, self._stop.calling(gateway.close):
            try:
                show(self._console, gateway, SAMPLE, show_draft=False)
            except SpecdecError as error:
                self._stop.check()
                self._say(f"warning: the sample failed: {error.message}")

    def _watch(self, children: Children) -> None:
        """Say it when a child ends; return when the end is asked for."""
        alive = list(children.all)
        while not self._stop.wait(_WATCH):
            for child in [child for child in alive if child.exit_status is not None]:
                alive.remove(child)
                self._say(
                    f"{child.command.name} ended ({_how(child)}), the rest goes on. "
                    f"Start it again: {child.command.again} (its log: {child.command.log})"
                )
            if not alive:
                raise StartFailed("every process has ended")

    def _logs(self, runtime: Path) -> Path:
        folder = self._settings.log_dir or runtime / "logs"
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"--log-dir {folder}: {error.strerror}") from error
        return folder.resolve()

    def _check_state_folder(self) -> None:
        path = self._settings.state
        if path is not None and not path.parent.is_dir():
            raise ConfigError(f"--state {path}: no such folder")
        if path is not None and not os.access(path.parent, os.W_OK):
            raise ConfigError(f"--state {path}: the folder cannot be written")

    def _say(self, line: str) -> None:
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)


def _how(child: Child) -> str:
    status = child.exit_status or 0
    return f"killed by {signal.Signals(-status).name}" if status < 0 else f"status {status}"
