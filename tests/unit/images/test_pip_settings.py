"""A build step gets pip's settings from a file and from mounts, in place of this machine's paths."""

from pathlib import Path

import pytest

from images.pip_settings import settings_of


def test_paths_of_this_machine_are_mounted_and_named_by_where(tmp_path: Path) -> None:
    (tmp_path / "index" / "simple").mkdir(parents=True)
    (tmp_path / "wheels").mkdir()
    listed = f"""global.extra-index-url='file://{tmp_path}/index/simple https://packages.example/simple'
global.find-links='{tmp_path}/wheels /not/here'
"""
    settings = settings_of(listed)
    assert settings.mounts == ((tmp_path / "index", "/dev/pip/0"), (tmp_path / "wheels", "/dev/pip/1"))
    assert "extra-index-url = file:///dev/pip/0/simple https://packages.example/simple\n" in settings.text
    assert "find-links = /dev/pip/1 /not/here\n" in settings.text
    assert str(tmp_path) not in settings.text


def test_the_environment_is_stronger_than_files() -> None:
    listed = "global.index-url='https://weak.example'\ninstall.retries='3'\n:env:.index-url='https://strong.example'\n"
    text = settings_of(listed).text
    assert "index-url = https://strong.example\n" in text
    assert "weak" not in text
    assert "retries = 3\n" in text


def test_only_where_packages_come_from_is_handed_on() -> None:
    settings = settings_of("global.target='/elsewhere'\nglobal.cache-dir='/root/.cache'\n")
    assert (settings.text.strip(), settings.mounts) == ("[global]", ())


def test_what_pip_does_not_print_is_refused() -> None:
    with pytest.raises(ValueError, match="no setting in 'index'"):
        settings_of("index")
