"""Ties a command to the process that started it: `python tether.py PARENT_PID NICE COMMAND...` becomes COMMAND.

On Linux the kernel kills the command when the parent's main thread ends, however it ends; elsewhere the command is just
run. NICE is how far others go before it on the processors, as in `give_way`. Commands are tied by running this file,
because a hook between fork and exec is not safe in a parent with threads.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1
PR_SET_NAME = 15


def tied(*command: str, nice: int = 0) -> list[str]:
    """The command line of a command that is to be tied to this process."""
    return [sys.executable, "-I", "-S", __file__, str(os.getpid()), str(nice), *command]


def tie(parent: int) -> None:
    """Have the kernel kill this process when its parent ends; exit if the parent has ended already."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:
            sys.exit(1)


def name(process: str) -> None:
    """Give this process a name for `ps` and `top`, on Linux."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_NAME, process.encode(), 0, 0, 0)


def give_way(nice: int) -> None:
    """Let others go before this process on the processors, and leave one of several to them; without effect for 0.

    What works in many short pieces comes between the long ones of a model, whatever the priorities are.

    Args:
        nice: how far others go before it, 0 to 19.
    """
    os.nice(nice)
    if nice and sys.platform == "linux" and len(cores := sorted(os.sched_getaffinity(0))) > 1:
        os.sched_setaffinity(0, cores[1:])


def main(arguments: list[str]) -> None:
    """Tie this process to its parent, and become the command."""
    parent, nice, *command = arguments
    tie(int(parent))
    give_way(int(nice))
    os.execvp(command[0], command)


if __name__ == "__main__":
    main(sys.argv[1:])
