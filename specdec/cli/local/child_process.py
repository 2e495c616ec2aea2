"""Tie a command to the process that started it: `python child_process.py PARENT_PID NICE COMMAND...` executes COMMAND.

On Linux the kernel kills the command when the parent's main thread ends for any reason. On other systems the command
runs without a tie. NICE is the niceness, as in `give_way`. This file is executed before the command, because a hook
between fork and exec is not safe in a parent with threads.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1
PR_SET_NAME = 15


def tied(*command: str, nice: int = 0) -> list[str]:
    """The command line that runs a command tied to this process."""
    return [sys.executable, "-I", "-S", __file__, str(os.getpid()), str(nice), *command]


def tie(parent: int) -> None:
    """Ask the kernel to kill this process when its parent ends; exit if the parent has already ended."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:
            sys.exit(1)


def name(process: str) -> None:
    """Set the name of this process in `ps` and `top`, on Linux."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_NAME, process.encode(), 0, 0, 0)


def give_way(nice: int) -> None:
    """Lower the priority of this process, and leave the first of several processors to others; no effect for 0.

    A process that works in many short pieces interrupts the long ones of a model regardless of priorities, so priority
    alone is not enough.

    Args:
        nice: increment of the niceness, 0 to 19.
    """
    os.nice(nice)
    if nice and sys.platform == "linux" and len(cores := sorted(os.sched_getaffinity(0))) > 1:
        os.sched_setaffinity(0, cores[1:])


def main(arguments: list[str]) -> None:
    """Tie this process to its parent, and execute the command."""
    parent, nice, *command = arguments
    tie(int(parent))
    give_way(int(nice))
    os.execvp(command[0], command)


if __name__ == "__main__":
    main(sys.argv[1:])
