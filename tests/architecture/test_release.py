"""The release workflow publishes every image and finds the versions and the registry where the files have them."""

import re

import yaml

from images.__main__ import IMAGES
from tests.architecture.image import ROOT

WORKFLOW = ROOT / ".github" / "workflows" / "release.yaml"
TEXT = WORKFLOW.read_text(encoding="utf-8")


def test_every_image_of_the_product_is_published() -> None:
    published = set(re.findall(r"^ +publish ([\w-]+) \S+ (\S+)", TEXT, flags=re.MULTILINE))
    assert published == {(name, image.dockerfile) for name, image in IMAGES.items() if name != "valkey"}


def test_the_version_of_a_tag_is_compared_with_lines_that_are_there() -> None:
    for pattern, file in re.findall(r'grep -qx "(.*)" (\S+)$', TEXT, flags=re.MULTILINE):
        line = re.escape(pattern.replace('\\"', '"')).replace(re.escape("$version"), r"[\d.]+")
        assert re.search(f"^{line}$", (ROOT / file).read_text(encoding="utf-8"), flags=re.MULTILINE), file


def test_the_chart_is_told_the_registry_in_the_one_place_of_its_values() -> None:
    assert 's#^imageRegistry: \\"\\"#' in TEXT
    values = (ROOT / "helm" / "values.yaml").read_text(encoding="utf-8")
    assert len(re.findall(r'^imageRegistry: ""$', values, flags=re.MULTILINE)) == 1


def test_only_what_publishes_may_write() -> None:
    workflow = yaml.safe_load(TEXT)
    assert workflow["permissions"] == {"contents": "read"}
    writers = {name for name, job in workflow["jobs"].items() if "write" in job.get("permissions", {}).values()}
    assert writers == {"images", "chart", "package"}
    assert "secrets." not in TEXT.replace("secrets.GITHUB_TOKEN", "")
