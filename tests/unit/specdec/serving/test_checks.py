"""Checks are written as one JSON object per line, and the result is false if any check fails."""

import json
import socket

from specdec.serving.checks import Check, port_check, write_checks


def test_lines_are_json_and_a_failure_is_the_verdict() -> None:
    written: list[str] = []
    assert not write_checks([Check.fail("a", "broken", "mend it"), Check.ok("b", "fine")], written.append)
    assert [json.loads(line)["status"] for line in written] == ["fail", "ok"]


def test_a_warning_is_no_failure() -> None:
    assert write_checks([Check.warn("a", "hm", "mend it")], [].append)


def test_a_port_is_free_until_somebody_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        assert port_check("http", address).status == "warn"
    assert port_check("http", address).status == "ok"
