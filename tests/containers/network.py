"""A network of a test's own: its containers, bridges and ports are nowhere else, and nobody else's are in it."""

import ctypes
import os
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_NEW_NETWORK = 0x40000000
"""CLONE_NEWNET of <sched.h>."""


@contextmanager
def own_network() -> Iterator[Path]:
    """Lets this thread, and what it starts, use a new network namespace with a loopback; gives its name in /proc.

    Raises:
        PermissionError: this process may make none.
    """
    current = Path(f"/proc/self/task/{threading.get_native_id()}/ns/net")
    before = os.open(current, os.O_RDONLY)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_NEW_NETWORK):
        os.close(before)
        raise PermissionError(ctypes.get_errno(), "no network namespace can be made here")
    try:
        subprocess.run(("ip", "link", "set", "lo", "up"), check=True)
        yield current
    finally:
        libc.setns(before, _NEW_NETWORK)
        os.close(before)


def processes_in(namespace: str) -> list[str]:
    """The command lines of the other processes in a network namespace, named as a link in /proc names it."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        if process.name == str(os.getpid()):
            continue
        try:
            if os.readlink(process / "ns" / "net") == namespace:
                found.append((process / "cmdline").read_text().replace("\0", " "))
        except OSError:  # it ended meanwhile
            continue
    return found
