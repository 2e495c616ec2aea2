"""Client side of the fork server: start it, order children and read their reports."""

import json
import os
import select
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from signal import SIGKILL

from specdec.cli.local import child_process
from specdec.cli.local.fork_server import MESSAGE_BYTES, ForkOrder, ForkReport

_POLL = 0.02
_GPUS = ("/dev/nvidiactl", "/dev/kfd")
"""Device files of GPU drivers."""
SHARED = "SPECDEC_FORK_SERVERS"
"""Environment variable with the folder of the sockets of running fork servers, each named after its imported
modules."""


def is_supported() -> bool:
    """Whether processes may be forked: on Linux without a GPU, whose driver must not be used before a fork."""
    return sys.platform == "linux" and not any(map(os.path.exists, _GPUS))


class ForkServer:
    """A fork server and the reports of its children; thread-safe."""

    def __init__(self, modules: Sequence[str], environment: Mapping[str, str], log: Path) -> None:
        """Start a server that imports `modules` with this `environment` and writes its output to `log`.

        A server for these modules in the folder of `SPECDEC_FORK_SERVERS` is used instead of a new one.

        Raises:
            OSError: the log cannot be written, or the interpreter cannot be run.
        """
        shared = shared_socket(modules, environment)
        self._process: subprocess.Popen[bytes] | None = None
        if shared and shared.exists():
            self._link = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            self._link.connect(str(shared))
        else:
            self._link, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with theirs:
                server = [sys.executable, "-m", "specdec.cli.local.fork_server", str(theirs.fileno()), *modules]
                self._process = spawned(server, environment, log, descriptors=[theirs.fileno()])
        self._lock = threading.Lock()
        self._ordered = 0
        self._reports = dict[int, ForkReport]()
        self._hung_up = False

    @property
    def status(self) -> int | None:
        """The server's exit status; None while it runs. A shared server that hangs up counts as killed."""
        if self._process is not None:
            return self._process.poll()
        self.report(0)
        return -SIGKILL if self._hung_up else None

    def start(
        self, name: str, module: str, arguments: Sequence[str], environment: Mapping[str, str], log: Path, nice: int
    ) -> "ForkedProcess":
        """Order a child.

        Raises:
            OSError: the server has ended, or the environment is too large for a message.
        """
        with self._lock:
            self._ordered += 1
            place = str(log.resolve()), os.getcwd()
            order = ForkOrder(self._ordered, name, module, tuple(arguments), dict(environment), *place, nice)
            self._link.send(json.dumps(order).encode())
        return ForkedProcess(self, order.number)

    def report(self, number: int) -> ForkReport | None:
        """Read the server's pending reports. Return the newest report of a child, or None before it runs."""
        with self._lock:
            while self._link.fileno() >= 0 and select.select([self._link], [], [], 0)[0]:
                message = self._received()
                if not message:
                    self._hung_up = True
                    break
                report = ForkReport(*json.loads(message))
                self._reports[report.number] = report
            return self._reports.get(number)

    def stop_importing(self) -> None:
        """End the server if it has not forked a child yet."""
        self.report(0)
        with self._lock:
            if self._process is not None and not self._reports:
                self._process.kill()
                self._process.wait()

    def close(self) -> None:
        """End the server and every child that still runs."""
        self.report(0)
        self._link.close()
        if self._process is not None:
            self._process.wait()

    def _received(self) -> bytes:
        try:
            return self._link.recv(MESSAGE_BYTES)
        except ConnectionResetError:
            return b""


def shared_socket(modules: Sequence[str], environment: Mapping[str, str]) -> Path | None:
    """Socket of the shared fork server for these modules; None if SPECDEC_FORK_SERVERS is not set."""
    folder = environment.get(SHARED)
    return Path(folder, "+".join(modules)) if folder else None


def spawned(
    command: Sequence[str], environment: Mapping[str, str], log: Path, nice: int = 0, descriptors: Sequence[int] = ()
) -> "subprocess.Popen[bytes]":
    """Start a process that is tied to this one; its output is appended to the log.

    Args:
        nice: niceness of the process, as in `child_process.give_way`.
        descriptors: file descriptors that the process inherits.
    """
    with log.open("ab") as output:
        return subprocess.Popen(
            child_process.tied(*command, nice=nice),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=dict(environment),
            pass_fds=descriptors,
            # Ctrl-C must reach only this process, which stops the children in order. The children stay in its session:
            # Linux shares the processors evenly between sessions, regardless of the priorities of their processes.
            process_group=0,
        )


class ForkedProcess:
    """A child of a fork server, with the subset of the interface of `subprocess.Popen` that its parent uses."""

    def __init__(self, server: ForkServer, number: int) -> None:
        self._server = server
        self._number = number
        self._status: int | None = None

    @property
    def pid(self) -> int:
        """Process id of the child; waits until the server has forked it.

        Raises:
            ProcessLookupError: the server ended before it forked this process.
        """
        while (report := self._server.report(self._number)) is None:
            if self._server.status is not None:
                raise ProcessLookupError(f"the fork server ended before process {self._number} was started")
            time.sleep(_POLL)
        return report.pid

    def poll(self) -> int | None:
        """Exit status of the child, negative for a signal; None while it runs."""
        if self._status is None:
            of_server = self._server.status  # read first, so that the server's last reports are read below
            report = self._server.report(self._number)
            self._status = report.status if report else None
            if self._status is None and of_server is not None:
                self._status = of_server or -SIGKILL
        return self._status

    def wait(self) -> int:
        """Wait until the child ends and return its exit status."""
        while (status := self.poll()) is None:
            time.sleep(_POLL)
        return status
