"""Writes the table of status codes in docs/grpc.md from the code; a test compares both."""

import re
import sys
from pathlib import Path

from specdec.serving.rpc.status import statuses

PAGE = Path(__file__).with_name("grpc.md")
TABLE = re.compile(r"(?<=<!-- status codes -->\n).*?(?=\n<!-- end -->)", flags=re.DOTALL)


def table() -> str:
    """Return the table in Markdown: one row for each reason."""
    rows = ["|reason|gRPC|HTTP|`code` over HTTP|repeat after|", "|---|---|---|---|---|"]
    for kind, status in sorted(statuses(), key=lambda each: (each[1].grpc.value[0], each[0].reason)):
        again = "" if status.retry_after is None else f"{status.retry_after:g} s"
        code = f"`{status.code}`" if status.code else ""
        rows.append(f"|`{kind.reason}`|`{status.grpc.name}`|{status.http}|{code}|{again}|")
    return "\n".join(rows)


if __name__ == "__main__":
    text = PAGE.read_text(encoding="utf-8")
    sys.exit(0 if PAGE.write_text(TABLE.sub(lambda found: table(), text), encoding="utf-8") else 1)
