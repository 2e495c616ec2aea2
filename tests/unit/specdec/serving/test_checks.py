"""Findings: one JSON object a line, and a verdict over all of them."""

import json
import socket

from specdec.serving.checks import Line, port_line, write_lines


def test_lines_are_json_and_a_failure_is_the_verdict() -> None:
    written: list[str] = []
    assert not write_lines([Line("a", "fail", "broken", "mend it"), Line("b", "ok", "fine")], written.append)
    assert [json.loads(line)["status"] for line in written] == ["fail", "ok"]


def test_a_warning_is_no_failure() -> None:
    assert write_lines([Line("a", "warn", "hm")], [].append)


def test_a_port_is_free_until_somebody_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        assert port_line("http", address).status == "warn"
    assert port_line("http", address).status == "ok"
