"""Podman on machines without systemd gets a configuration file of its own."""

import tomllib
from pathlib import Path
from resource import RLIMIT_NOFILE, RLIMIT_NPROC, getrlimit

from images.engine import Podman, configuration


def test_no_limit_is_above_this_process_s() -> None:
    read = tomllib.loads(configuration())
    assert read["engine"]["runtime"] == "runc"
    for limit, name in ((RLIMIT_NOFILE, "nofile"), (RLIMIT_NPROC, "nproc")):
        (given,) = [each for each in read["containers"]["default_ulimits"] if each.startswith(f"{name}=")]
        assert getrlimit(limit)[1] < 0 or int(given.rpartition(":")[2]) <= getrlimit(limit)[1]


def test_every_call_gets_the_configuration(tmp_path: Path) -> None:
    environment = Podman(tmp_path / "scratch").environment()
    assert Path(environment["CONTAINERS_CONF"]).read_text() == configuration()
