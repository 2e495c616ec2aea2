"""Exit status 0 once a port is WANTED (`open` or `closed`) several times in a row; run as a pod's script.

A network applies policies to a new pod with a delay, so a single connection proves nothing. The script uses only the
standard library. HOST and PORT are the address, TRIES the largest number of connections.
"""

import os
import socket
import sys
import time

IN_A_ROW = 4


def is_open(host: str, port: int) -> bool:
    """Whether a connection opens."""
    try:
        socket.create_connection((host, port), timeout=3).close()
    except OSError:  # also a name that is not resolved
        return False
    return True


def settles(host: str, port: int, wanted: bool, tries: int) -> bool:
    """Whether the port becomes open or closed, as wanted, and stays so."""
    row = 0
    for _ in range(tries):
        row = row + 1 if is_open(host, port) == wanted else 0
        if row == IN_A_ROW:
            return True
        time.sleep(0.5)
    return False


if __name__ == "__main__":
    address = os.environ["HOST"], int(os.environ["PORT"])
    sys.exit(not settles(*address, os.environ["WANTED"] == "open", int(os.environ.get("TRIES", "60"))))
