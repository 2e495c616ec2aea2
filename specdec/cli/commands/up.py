"""`specdec up`: run the whole system on this machine, as separate processes, until a stop signal."""

import os
import secrets
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from pydantic import SecretStr
from rich.console import Console

from specdec.cli.client import GatewayClient, drafter_states
from specdec.cli.commands.sample import SAMPLE, last_line, show_sample
from specdec.cli.local import launch, plan, ports, stores, valkey
from specdec.cli.local.launch import Folders, RunningService
from specdec.cli.local.processes import Children
from specdec.cli.local.runtime import data_folder, runtime_folder, state_file
from specdec.cli.local.scrape import write_scrape_config
from specdec.cli.local.signals import Stop
from specdec.cli.local.supervisor import RestartPolicy, Supervisor
from specdec.cli.settings import UpSettings, find_model, source_names
from specdec.client.connection import GatewayConnection
from specdec.errors import ConfigError, SpecdecError
from specdec.serving.addresses import is_loopback
from specdec.serving.rpc.access import Access
from specdec.wire.generation import DrafterState

_WATCH_SECONDS = 0.2
_DRAFTER_TRIES = 50


class Up:
    """One run of `specdec up`."""

    def __init__(self, console: Console, settings: UpSettings, stop: Stop) -> None:
        self._console = console
        self._settings = settings
        self._stop = stop
        # For this run only; written only to configuration files, which only their owner can read.
        self._access = Access(token=SecretStr(secrets.token_urlsafe(32)))

    def run(self) -> None:
        """Start every process, serve until a stop signal, and end every process.

        Raises:
            ConfigError: a setting is invalid; no process was started.
            StartFailed: a process did not become healthy, or all have ended.
            Unreachable: the given session store does not answer.
            StopRequested: a stop signal arrived before every process was healthy.
        """
        with ports.Reservations() as reserved:
            self._run(*self._check(reserved))

    def _run(self, chosen: stores.Chosen, addresses: plan.Addresses) -> None:
        with data_folder(self._settings.data), runtime_folder() as runtime, Children() as children:
            folders = Folders(runtime, self._logs(runtime))
            used = stores.configure(chosen, self._settings, runtime)
            services = plan.services(self._settings, addresses, used.sessions, used.kv, self._token)
            with self._console.status("starting"):
                self._start_stores(children, folders, used.embedded)
                running = self._start_services(children, folders, services)
                self._speak_of_drafters(running, folders, addresses)
            with state_file(self._settings.state) as write_state:
                write_state(_processes(children, services))
                if self._settings.scrape_config:
                    write_scrape_config(self._settings.scrape_config, services, _key())
                said = self._sample(running)
                self._show_addresses(services, folders)
                self._say("Serving until Ctrl-C.")
                if said:
                    self._say(f"\n{said}\n")
                self._watch(children, lambda: write_state(_processes(children, services)))
            self._say("Stopping.")

    def _check(self, reserved: ports.Reservations) -> tuple[stores.Chosen, plan.Addresses]:
        """Check everything that can be checked before a process is started."""
        plan.check_models(self._settings)
        self._check_state_folder()
        if self._settings.unused_head:
            self._say(f"warning: {self._settings.unused_head}")
        check_keys(self._settings, self._say)
        addresses = plan.allot(self._settings, reserved)
        chosen = stores.choose(self._settings)
        if chosen.lacking:
            self._say(f"warning: keys and values are kept by the verifiers alone: {chosen.lacking}")
        if self._settings.state:
            self._settings.state.unlink(missing_ok=True)  # a file of an earlier run would look like this run's
        return chosen, addresses

    def _start_stores(self, children: Children, folders: Folders, embedded: Sequence[valkey.Embedded]) -> None:
        started = [(launch.start_store(children, folders, each), each.url) for each in embedded]
        for store, url in started:
            launch.wait_for_store(store, url, self._stop)
            self._say(f"{store.command.name} is healthy")

    def _start_services(
        self, children: Children, folders: Folders, services: Sequence[plan.Service]
    ) -> list[RunningService]:
        running = [launch.start_service(children, folders, service) for service in services]
        for ready in launch.wait_for_services(running, self._stop, self._settings.start_timeout):
            self._say(f"{ready.service.name} is healthy")
        return running

    def _speak_of_drafters(
        self, running: Sequence[RunningService], folders: Folders, addresses: plan.Addresses
    ) -> None:
        if self._settings.drafters:
            self._report_drafters(running)
        else:
            self._offer_drafter(folders, plan.later_drafter(self._settings, addresses, self._token))

    def _offer_drafter(self, folders: Folders, later: plan.Service) -> None:
        """Print how to start a drafter later."""
        command = launch.command_line("drafter", launch.write_config(folders, later))
        sources = [*source_names(self._settings.local), *(["head"] if self._settings.head else [])]
        own = ", ".join(dict.fromkeys(sources))
        tokens = f"verifiers draft by {own} alone" if own else "every token is plain"
        self._say(f"no drafter: {tokens} until one listens at {later.grpc}. Start it: {command}")

    def _report_drafters(self, running: Sequence[RunningService]) -> None:
        """Wait until every verifier has connected to its drafters, and report each refused drafter with the reason."""
        for verifier in (each.service for each in running if each.service.role == "verifier"):
            for drafter in self._drafters_of(verifier.grpc):
                if drafter.state != "ready":
                    self._say(f"warning: {verifier.name} has no use of drafter {drafter.address}: {drafter.state}")

    def _drafters_of(self, verifier: str) -> Sequence[DrafterState]:
        """The drafters of a verifier, once it has connected to all of them or the wait times out."""
        for _ in range(_DRAFTER_TRIES):
            drafters = drafter_states(verifier, self._access)
            if all(drafter.state != "connecting" for drafter in drafters):
                break
            self._stop.wait(0.1)
            self._stop.check()
        return drafters

    def _show_addresses(self, services: Sequence[plan.Service], folders: Folders) -> None:
        self._say("")
        for service in services:
            what = f"gRPC {service.grpc} · metrics http://{service.http}/metrics"
            if service.role == "gateway":
                what = f"OpenAI API http://{service.http}/v1 · {what}"
            self._say(f"{service.name:<12} {what}")
        self._say(f"{'model':<12} {self._settings.served_name}")
        if self._settings.head:
            self._say(f"{'head':<12} {find_model(self._settings.head)}")
        self._say(f"{'logs':<12} {folders.logs}")
        if self._settings.data:
            self._say(f"{'sessions':<12} {self._settings.data.resolve()}")
        self._say("")

    def _sample(self, running: Sequence[RunningService]) -> str:
        """Show the sample. Return its last line; empty without a sample."""
        if not self._settings.sample:
            return ""
        first = next(each.service for each in running if each.service.role == "gateway")
        if self._settings.api_keys and not _key():
            self._say("No sample: set SPECDEC_API_KEY to a key of that file to have one.")
            return ""
        connection = GatewayConnection(first.grpc, _key())
        with closing(GatewayClient(connection)) as gateway, self._stop.calling(gateway.close):
            try:
                # A head's drafts cost about what they save after the first few, so the server chooses their number.
                asked = replace(SAMPLE, gamma=None) if self._settings.head else SAMPLE
                return last_line(show_sample(self._console, gateway, asked), f"http://{first.http}/", first.grpc)
            except SpecdecError as error:
                self._stop.check()
                self._say(f"warning: the sample failed: {error.message}")
                return ""

    def _watch(self, children: Children, restarted: Callable[[], None]) -> None:
        """Restart processes that end, until a stop signal; `restarted` is called after restarts."""
        supervisor = Supervisor(children, RestartPolicy(self._settings.restarts), self._say)
        while not self._stop.wait(_WATCH_SECONDS):
            if supervisor.look():
                restarted()

    @property
    def _token(self) -> str:
        return self._access.token.get_secret_value()

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
        if path is not None and path.is_dir():
            raise ConfigError(f"--state {path}: is a folder; name a file")

    def _say(self, line: str) -> None:
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)


def check_keys(settings: UpSettings, say: Callable[[str], None]) -> None:
    """Check that the file of API keys can be read, and warn if a gateway is open to other machines without keys.

    Raises:
        ConfigError: the file does not exist or cannot be read.
    """
    if settings.api_keys:
        if not os.access(settings.api_keys, os.R_OK):
            raise ConfigError(f"--api-keys {settings.api_keys}: no such file, or it cannot be read")
    elif open_to := [address for address in (settings.http, settings.grpc) if not is_loopback(address)]:
        say(f"WARNING: every client that reaches {' or '.join(open_to)} is served: ask for keys with --api-keys FILE")


def _key() -> str:
    """The user's API key, from SPECDEC_API_KEY; empty for none."""
    return os.environ.get("SPECDEC_API_KEY", "")


def _processes(children: Children, services: Sequence[plan.Service]) -> list[dict[str, object]]:
    """The entries of the state file, one for each process; stores have no address."""
    places = {service.name: {"http": service.http, "grpc": service.grpc} for service in services}
    nowhere = {"http": None, "grpc": None}
    return [
        {"role": child.command.role, "pid": child.pid, **places.get(child.command.name, nowhere)}
        for child in children.all
    ]
