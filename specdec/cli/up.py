"""`specdec up`: runs the whole system on this machine, as separate processes, until it is told to stop."""

import os
import signal
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from rich.console import Console

from specdec.cli import launch, plan, valkey
from specdec.cli.client import GatewayClient, drafter_states
from specdec.cli.events import PromptRequest
from specdec.cli.exit_codes import StartFailed
from specdec.cli.launch import Folders, RunningService
from specdec.cli.processes import Child, Children
from specdec.cli.run import show
from specdec.cli.runtime import runtime_folder, state_file
from specdec.cli.settings import UpSettings
from specdec.cli.signals import Stop
from specdec.errors import ConfigError, SpecdecError
from specdec.wire.generation import DrafterState

SAMPLE = PromptRequest("import os\nimport sys\n\n\ndef main(", max_tokens=96, temperature=0.0, seed=0)
_WATCH_SECONDS = 0.2
_DRAFTER_TRIES = 50


class Up:
    """One run of `specdec up`."""

    def __init__(self, console: Console, settings: UpSettings, stop: Stop) -> None:
        self._console = console
        self._settings = settings
        self._stop = stop

    def run(self, given_redis: str) -> None:
        """Start everything, serve until told to stop, and end everything.

        Args:
            given_redis: URL of a session store that runs already; empty to start one.

        Raises:
            ConfigError: a mistake was found before anything was started.
            StartFailed: a process did not become healthy, or all have ended.
            Unreachable: the given session store does not answer.
            StopRequested: a signal asked for the end before everything was healthy.
        """
        addresses, binary = self._check(given_redis)
        with runtime_folder() as runtime, Children() as children:
            folders = Folders(runtime, self._logs(runtime))
            embedded = valkey.embed(binary, runtime) if binary else None
            services = plan.services(self._settings, addresses, embedded.url if embedded else given_redis)
            with self._console.status("starting"):
                store = self._start_store(children, folders, embedded) if embedded else None
                running = self._start_services(children, folders, services)
            with state_file(self._settings.state, _processes(store, running)):
                self._sample(running)
                self._show_addresses(running, folders)
                self._say("Serving until Ctrl-C.")
                self._watch(children)
            self._say("Stopping.")

    def _check(self, given_redis: str) -> tuple[plan.Addresses, valkey.Binary | None]:
        """Find every mistake that can be found before anything is started."""
        plan.check_models(self._settings)
        self._check_state_folder()
        addresses = plan.allot(self._settings)
        if given_redis:
            launch.check_given_store(given_redis)
        binary = None if given_redis else valkey.resolve()
        if self._settings.state:
            self._settings.state.unlink(missing_ok=True)  # one of an earlier run would be taken for this one's
        return addresses, binary

    def _start_store(self, children: Children, folders: Folders, embedded: valkey.Embedded) -> Child:
        store = launch.start_store(children, folders, embedded)
        launch.wait_for_store(store, embedded.url, self._stop)
        self._say("redis-1 is healthy")
        return store

    def _start_services(
        self, children: Children, folders: Folders, services: Sequence[plan.Service]
    ) -> list[RunningService]:
        running = [launch.start_service(children, folders, service) for service in services]
        for ready in launch.wait_for_services(running, self._stop, self._settings.start_timeout):
            self._say(f"{ready.service.name} is healthy")
        if self._settings.drafters:
            self._report_drafters(running)
        else:
            self._offer_drafter(folders)
        return running

    def _offer_drafter(self, folders: Folders) -> None:
        """Say how a drafter can be started later."""
        later = plan.later_drafter(self._settings)
        command = launch.command_line("drafter", launch.write_config(folders, later))
        self._say(f"no drafter: every token is plain until one listens at {later.grpc}. Start it: {command}")

    def _report_drafters(self, running: Sequence[RunningService]) -> None:
        """Wait until every verifier has met its drafters, and report the drafters that it refuses, and why."""
        for verifier in (each.service for each in running if each.service.role == "verifier"):
            for drafter in self._drafters_of(verifier.grpc):
                if drafter.state != "ready":
                    self._say(f"warning: {verifier.name} has no use of drafter {drafter.address}: {drafter.state}")

    def _drafters_of(self, verifier: str) -> Sequence[DrafterState]:
        """The drafters of a verifier, once it has met all of them; sooner when that takes too long."""
        for _ in range(_DRAFTER_TRIES):
            drafters = drafter_states(verifier)
            if all(drafter.state != "connecting" for drafter in drafters):
                break
            self._stop.wait(0.1)
            self._stop.check()
        return drafters

    def _show_addresses(self, running: Sequence[RunningService], folders: Folders) -> None:
        self._say("")
        for service in (each.service for each in running):
            what = f"gRPC {service.grpc} · metrics http://{service.http}/metrics"
            if service.role == "gateway":
                what = f"OpenAI API http://{service.http}/v1 · gRPC {service.grpc}"
            self._say(f"{service.name:<12} {what}")
        self._say(f"{'model':<12} {self._settings.served_name}")
        self._say(f"{'logs':<12} {folders.logs}")
        self._say("")

    def _sample(self, running: Sequence[RunningService]) -> None:
        if not self._settings.sample:
            return
        self._say(f"\nA sample, going on from:\n{SAMPLE.prompt}\n")
        address = next(each.service.grpc for each in running if each.service.role == "gateway")
        with closing(GatewayClient(address)) as gateway, self._stop.calling(gateway.close):
            try:
                show(self._console, gateway, SAMPLE, show_draft=False)
            except SpecdecError as error:
                self._stop.check()
                self._say(f"warning: the sample failed: {error.message}")

    def _watch(self, children: Children) -> None:
        """Report every child that ends, until a signal asks for the end."""
        alive = list(children.all)
        while not self._stop.wait(_WATCH_SECONDS):
            for child in [child for child in alive if child.exit_status is not None]:
                alive.remove(child)
                self._say(
                    f"{child.command.name} ended ({_how(child)}), the rest goes on. "
                    f"Start it again: {child.command.restart} (its log: {child.command.log})"
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


def _processes(store: Child | None, running: Sequence[RunningService]) -> list[dict[str, object]]:
    """Every process for the state file; the session store has no address there."""
    redis: list[dict[str, object]] = [{"role": "redis", "pid": store.pid, "http": None, "grpc": None}] if store else []
    services = [(each.service, each.child.pid) for each in running]
    return redis + [{"role": each.role, "pid": pid, "http": each.http, "grpc": each.grpc} for each, pid in services]


def _how(child: Child) -> str:
    """How a child ended."""
    status = child.exit_status or 0
    return f"killed by {signal.Signals(-status).name}" if status < 0 else f"status {status}"
