"""The loud tenant of `benchmarks.tenants`: `python -m benchmarks.tenants_flood ADDRESS KEY RATE CONNECTIONS STATUS`.

It writes a line at the first answer with STATUS. At the end of its input, it writes the count of each status and ends.
"""

import http.client
import json
import sys
import threading
import time
from collections import Counter

GOOD = 200
TOO_MANY = 429
"""Status of a request over the limits of its key."""
_BODY = {"prompt": "def main(", "max_tokens": 32, "temperature": 0}


class Caller:
    """One connection that sends completions."""

    def __init__(self, address: str, key: str) -> None:
        host, _, port = address.rpartition(":")
        self._connection = http.client.HTTPConnection(host, int(port), timeout=120)
        self._headers = {"authorization": f"Bearer {key}", "content-type": "application/json"}

    def ask(self) -> int:
        """Request one completion, and return its status after the whole answer has arrived."""
        self._connection.request("POST", "/v1/completions", json.dumps(_BODY), self._headers)
        answer = self._connection.getresponse()
        answer.read()
        return answer.status


def main(address: str, key: str, rate: float, connections: int, awaited: int) -> None:
    """Send `rate` requests a second over `connections` connections until the input ends. Report the first `awaited`."""
    statuses: Counter[int] = Counter()
    end = threading.Event()

    def send(number: int) -> None:
        caller, due = Caller(address, key), time.monotonic() + number / rate
        while not end.wait(max(0.0, due - time.monotonic())):
            status = caller.ask()
            statuses[status] += 1
            if status == awaited and statuses[status] == 1:
                sys.stdout.write(f"{status}\n")
                sys.stdout.flush()
            due += connections / rate

    threads = [threading.Thread(target=send, args=(number,)) for number in range(connections)]
    for thread in threads:
        thread.start()
    sys.stdin.read()
    end.set()
    for thread in threads:
        thread.join()
    sys.stdout.write(json.dumps(statuses) + "\n")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], float(sys.argv[3]), int(sys.argv[4]), int(sys.argv[5]))
