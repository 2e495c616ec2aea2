"""The release workflow publishes every image, and finds the versions and the registry in the files that hold them."""

import re
import subprocess

import yaml

from images.__main__ import IMAGES, TAG
from tests.architecture.image import ROOT

WORKFLOW = ROOT / ".github" / "workflows" / "release.yaml"
TEXT = WORKFLOW.read_text(encoding="utf-8")
PUBLISHED = set(re.findall(r"^ +publish ([\w-]+) \S+ (\S+)", TEXT, flags=re.MULTILINE))
"""Name and Dockerfile of each image."""
VALUES = (ROOT / "helm" / "values.yaml").read_text(encoding="utf-8")


def test_every_image_of_the_product_is_published() -> None:
    assert {(name, image.dockerfile) for name, image in IMAGES.items() if name != "valkey"} == PUBLISHED


def test_the_chart_and_compose_ask_for_the_images_that_are_published() -> None:
    pod = (ROOT / "helm" / "templates" / "_pod.tpl").read_text(encoding="utf-8")
    compose = (ROOT / "compose.yaml").read_text(encoding="utf-8")
    asked = set(re.findall(r"\bspecdec/([\w-]+)", " ".join([*re.findall(r"repository: .*", VALUES), pod])))
    assert asked == {name for name, _ in PUBLISHED}
    assert 'prefix=$(echo "$REGISTRY/$OWNER/specdec"' in TEXT
    composed = set(re.findall(r"image: specdec/(\S+)", compose))
    assert composed == {f"{name}:{TAG}" for name in ("gateway", "drafter", "verifier")}
    assert {image.name.rpartition("/")[2] for name, image in IMAGES.items() if name != "valkey"} == {
        f"{name}:{TAG}" for name, _ in PUBLISHED
    }


def test_the_images_have_the_version_of_the_chart() -> None:
    chart = yaml.safe_load((ROOT / "helm" / "Chart.yaml").read_text(encoding="utf-8"))
    assert chart["appVersion"] == TAG


def test_the_scripts_of_the_workflow_are_bash() -> None:
    workflow = yaml.safe_load(TEXT)
    assert workflow["defaults"] == {"run": {"shell": "bash"}}, "which fails where a program of a pipe fails"
    for job in workflow["jobs"].values():
        for step in job["steps"]:
            subprocess.run(("bash", "-n"), input=step.get("run", ""), text=True, check=True)


def test_the_version_of_a_tag_is_compared_with_lines_that_are_there() -> None:
    for pattern, file in re.findall(r'grep -qx "(.*)" (\S+)$', TEXT, flags=re.MULTILINE):
        line = re.escape(pattern.replace('\\"', '"')).replace(re.escape("$version"), r"[\d.]+")
        assert re.search(f"^{line}$", (ROOT / file).read_text(encoding="utf-8"), flags=re.MULTILINE), file


def test_the_chart_is_told_the_registry_in_the_one_place_of_its_values() -> None:
    assert 's#^imageRegistry: \\"\\"#' in TEXT
    assert len(re.findall(r'^imageRegistry: ""$', VALUES, flags=re.MULTILINE)) == 1


def test_only_what_publishes_may_write() -> None:
    workflow = yaml.safe_load(TEXT)
    assert workflow["permissions"] == {"contents": "read"}
    writers = {name for name, job in workflow["jobs"].items() if "write" in job.get("permissions", {}).values()}
    assert writers == {"images", "chart", "package"}
    assert "secrets." not in TEXT.replace("secrets.GITHUB_TOKEN", "")
