"""A network namespace for one test: its containers, bridges and ports exist nowhere else, and it has no others."""

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
    """Move this thread and its children into a new network namespace with a loopback; return its name in /proc.

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
    """Return the command lines of the other processes in a network namespace, given its link in /proc."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        if process.name == str(os.getpid()):
            continue
        try:
            if os.readlink(process / "ns" / "net") == namespace:
                found.append((process / "cmdline").read_text().replace("\0", " "))
        except OSError:  # the process ended in the meantime
            continue
    return found
