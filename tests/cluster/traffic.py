"""A constant load from inside the cluster and its report, run as a pod's script until the pod is terminated.

The script uses only the standard library. GATEWAY is the address, CALLERS the number of concurrent callers. It prints a
line after the first answer or failure. At the end it prints one JSON object with `answered`, `failed` (the errors) and
`texts` (the distinct greedy texts).
"""

import json
import os
import signal
import sys
import threading
from urllib.error import URLError
from urllib.request import Request, urlopen

BODY = {"model": os.environ.get("MODEL", "target"), "prompt": "def main(", "max_tokens": 24, "temperature": 0}


class Traffic:
    """Callers that each wait for an answer before they send the next request."""

    def __init__(self, gateway: str) -> None:
        self._request = Request(
            f"{gateway}/v1/completions", json.dumps(BODY).encode(), {"Content-Type": "application/json"}
        )
        self._ended = threading.Event()
        self._begun = threading.Event()
        self._lock = threading.Lock()
        self._answered = 0
        self._failed: list[str] = []
        self._texts: set[str] = set()

    def call(self) -> None:
        """Send requests until the end."""
        while not self._ended.is_set():
            try:
                with urlopen(self._request, timeout=120) as answer:
                    text = json.load(answer)["choices"][0]["text"]
            except (URLError, OSError, ValueError, KeyError) as error:
                with self._lock:
                    self._failed.append(repr(error))
                self._begun.set()
                self._ended.wait(0.5)
            else:
                with self._lock:
                    self._answered += 1
                    self._texts.add(text)
                self._begun.set()

    def wait_for_first(self) -> None:
        """Wait until a request is answered or has failed."""
        self._begun.wait()

    def end(self) -> None:
        """Stop sending requests. Requests in progress finish."""
        self._ended.set()

    def report(self) -> str:
        """Return the counts of the load as JSON."""
        return json.dumps({"answered": self._answered, "failed": self._failed, "texts": sorted(self._texts)})


if __name__ == "__main__":
    traffic = Traffic(os.environ["GATEWAY"])
    signal.signal(signal.SIGTERM, lambda *_: traffic.end())
    callers = [threading.Thread(target=traffic.call) for _ in range(int(os.environ.get("CALLERS", "4")))]
    for caller in callers:
        caller.start()
    traffic.wait_for_first()
    sys.stdout.write("The first request is answered or has failed.\n")
    for caller in callers:
        caller.join()
    sys.stdout.write(traffic.report() + "\n")
