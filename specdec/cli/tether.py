"""Ties a command to the process that started it: `python tether.py PARENT_PID COMMAND...` becomes COMMAND.

On Linux the kernel kills the command when the parent's main thread ends, however it ends; elsewhere the command is just
run. This file is run and not imported, because a hook between fork and exec is not safe in a parent with threads.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main(arguments: list[str]) -> None:
    """Set the death signal, exit if the parent died before it was set, and become the command."""
    parent, *command = arguments
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != int(parent):
            sys.exit(1)
    os.execvp(command[0], command)


if __name__ == "__main__":
    main(sys.argv[1:])
