"""A fork server: a process that imports modules once and forks children that need them.

`python -m specdec.cli.local.fork_server SOCKET MODULE...` imports the modules, then forks one child for each message on
the socket, a file descriptor of type SOCK_SEQPACKET. It reports the child's process id and, after the child ends, its
exit status. The server ends when the other side closes the socket, and its children end with it.

If SOCKET is a path, the server listens there, and forks for each connection a server that has already imported the
modules. So systems that are started one after the other share one import.

Threads, gRPC and GPUs do not survive a fork, so the modules must not use any of them during their import.
"""

import gc
import json
import os
import runpy
import selectors
import signal
import socket
import sys
import tempfile
from collections.abc import Sequence
from importlib import import_module
from typing import NamedTuple

from specdec.cli.local import child_process

MESSAGE_BYTES = 1 << 17
"""Largest message, in bytes. It holds the environment, and a socket accepts about 200 KiB at once."""


class ForkOrder(NamedTuple):
    """Order to fork a child, sent as JSON."""

    number: int
    """Number of the child in the server's reports."""
    name: str
    """Name of the process in `ps` and `top`; the kernel keeps its first 15 bytes."""
    module: str
    """Module that the child runs, like `python -m`."""
    arguments: Sequence[str]
    environment: dict[str, str]
    log: str
    """File that the child's output is appended to."""
    folder: str
    """Working directory of the child."""
    nice: int
    """Niceness of the child, 0 to 19."""


class ForkReport(NamedTuple):
    """State of an ordered child, sent as JSON."""

    number: int
    pid: int
    status: int | None
    """Exit status, negative for a signal; None while the child runs."""


def main(arguments: list[str]) -> None:
    """Serve until the socket is closed; in a forked child, run the ordered module."""
    place, *modules = arguments
    for module in modules:
        import_module(module)
    gc.freeze()  # so that collections in the children do not write to the shared memory
    link = socket.socket(fileno=int(place)) if place.isdecimal() else _connection(place)
    server = os.getpid()
    order = _serve(link)
    if order is None:
        os._exit(0)  # nothing is open here, and tearing down all modules takes as long as a child's start
    _become(order, server)


def _connection(path: str) -> socket.socket:
    """Listen at `path` forever; return each connection in a forked process, which must serve it."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(f"{path}.new")
    listener.listen()
    os.rename(f"{path}.new", path)  # the file appears only when the socket accepts connections
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps the servers
    while True:
        link, _ = listener.accept()
        if not os.fork():
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            listener.close()
            return link
        link.close()


def _serve(link: socket.socket) -> ForkOrder | None:
    """Fork and report until the socket is closed. Return the order in a forked child, None in the server."""
    with link, selectors.DefaultSelector() as selector:
        selector.register(link, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.data is not None:
                    selector.unregister(key.fd)
                    os.close(key.fd)
                    link.send(json.dumps(_ended(*key.data)).encode())
                    continue
                message = link.recv(MESSAGE_BYTES)
                if not message:
                    return None
                order = ForkOrder(*json.loads(message))
                pid = os.fork()
                if not pid:
                    return order
                os.setpgid(pid, pid)  # here and in the child, so that the group exists before the report
                selector.register(os.pidfd_open(pid), selectors.EVENT_READ, (order.number, pid))
                link.send(json.dumps(ForkReport(order.number, pid, None)).encode())


def _ended(number: int, pid: int) -> ForkReport:
    return ForkReport(number, pid, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))


def _become(order: ForkOrder, server: int) -> None:
    child_process.tie(server)
    child_process.name(order.name)
    os.setpgid(0, 0)
    child_process.give_way(order.nice)
    with open(os.devnull, "rb") as nothing, open(order.log, "ab") as log:
        for descriptor, file in enumerate((nothing, log, log)):
            os.dup2(file.fileno(), descriptor)
    os.environ.clear()
    os.environ.update(order.environment)
    os.chdir(order.folder)
    tempfile.tempdir = None  # the cached value depends on the old environment
    sys.argv = [order.module, *order.arguments]
    runpy.run_module(order.module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main(sys.argv[1:])
