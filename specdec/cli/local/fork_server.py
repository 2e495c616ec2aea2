"""A fork server: a process that has imported what its children need, so that each starts without importing it again.

`python -m specdec.cli.local.fork_server SOCKET MODULE...` imports the modules, then forks one child for each message on
the socket (a file descriptor, of whole messages) and reports its process id and, at its end, its exit status. It ends
when the other side closes the socket, and its children end with it.

Where SOCKET is the path of a file that is not there yet, the server listens there, and forks for each connection a
server that has imported the modules already. So systems that are started one after the other share one import.

Threads, gRPC and GPUs do not survive a fork, so no module named here may use any of them while it is imported.
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

from specdec.cli.local import tether

MESSAGE_BYTES = 1 << 17
"""Largest message: the environment is in it, and a socket takes about 200 KiB at once."""


class ForkOrder(NamedTuple):
    """A child to fork; its message is JSON, as that of a report."""

    number: int
    """Names the child in the server's reports."""
    name: str
    """What `ps` and `top` call the process; the kernel keeps its first 15 bytes."""
    module: str
    """What the child runs, as `python -m` does."""
    arguments: Sequence[str]
    environment: dict[str, str]
    log: str
    """The file that its output is appended to."""
    folder: str
    """Where it works."""
    nice: int
    """How far others go before it on the processor, 0 to 19."""


class ForkReport(NamedTuple):
    """What became of an order."""

    number: int
    pid: int
    status: int | None
    """Exit status, negative for a signal; None when the child has begun to run."""


def main(arguments: list[str]) -> None:
    """Serve until the socket is closed; in a forked child, become what was ordered."""
    place, *modules = arguments
    for module in modules:
        import_module(module)
    gc.freeze()  # so that collections in the children leave the shared memory as it is
    link = socket.socket(fileno=int(place)) if place.isdecimal() else _connection(place)
    server = os.getpid()
    order = _serve(link)
    if order is None:
        os._exit(0)  # nothing is open here, and taking all modules down would cost as much as a child's start
    _become(order, server)


def _connection(path: str) -> socket.socket:
    """Listen at `path` for good; returns each connection in a process of its own, which is to serve it."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(f"{path}.new")
    listener.listen()
    os.rename(f"{path}.new", path)  # whoever finds the file can connect
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel buries the servers
    while True:
        link, _ = listener.accept()
        if not os.fork():
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            listener.close()
            return link
        link.close()


def _serve(link: socket.socket) -> ForkOrder | None:
    """Fork and report until the socket is closed; returns an order in the child that is to become it, else None."""
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
                os.setpgid(pid, pid)  # here and in the child: a signal to its group finds it from the first report on
                selector.register(os.pidfd_open(pid), selectors.EVENT_READ, (order.number, pid))
                link.send(json.dumps(ForkReport(order.number, pid, None)).encode())


def _ended(number: int, pid: int) -> ForkReport:
    return ForkReport(number, pid, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))


def _become(order: ForkOrder, server: int) -> None:
    tether.tie(server)
    tether.name(order.name)
    os.setpgid(0, 0)
    tether.give_way(order.nice)
    with open(os.devnull, "rb") as nothing, open(order.log, "ab") as log:
        for descriptor, file in enumerate((nothing, log, log)):
            os.dup2(file.fileno(), descriptor)
    os.environ.clear()
    os.environ.update(order.environment)
    os.chdir(order.folder)
    tempfile.tempdir = None  # it depends on the environment
    sys.argv = [order.module, *order.arguments]
    runpy.run_module(order.module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main(sys.argv[1:])
