"""Write and read large values forever, like clients of a KV store. The arguments are `URL BYTES`."""

import itertools
import os
import sys

import redis

KEYS = 8


def main() -> None:
    """Run until killed."""
    url, size = sys.argv[1], int(sys.argv[2])
    value = os.urandom(size)
    with redis.Redis.from_url(url) as client:
        for number in itertools.count():
            client.set(f"kv:{number % KEYS}", value)
            client.get(f"kv:{number % KEYS}")


if __name__ == "__main__":
    main()
