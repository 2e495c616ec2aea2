"""Ties a command to the process that started it: `python tether.py PARENT_PID COMMAND...` becomes COMMAND.

Run as a file, not imported: a hook between fork and exec is unsafe once the parent has threads, a fresh process is not.
On Linux the kernel kills the command when the parent's main thread ends, however it ends; elsewhere it is just run.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main(arguments: list[str]) -> None:
    """Set the death signal, make sure that the parent did not die before it was set, become the command."""
    parent, *command = arguments
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != int(parent):
            sys.exit(1)
    os.execvp(command[0], command)


if __name__ == "__main__":
    main(sys.argv[1:])
