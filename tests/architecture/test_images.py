"""Each image follows the build rules, and its service starts from only the files and packages in it."""

import re
import subprocess
from itertools import takewhile
from pathlib import Path

import pytest

from specdec.cli.local.serve import with_defaults
from tests.architecture.extras import IMPORT_EVERYTHING, RUN, command_with
from tests.architecture.image import EXTRA_OF, INSTALLED, ROOT, SERVICES, Instruction, build, copied, dockerfile


@pytest.fixture(params=SERVICES)
def service(request: pytest.FixtureRequest) -> str:
    """Return a service's folder."""
    name: str = request.param
    return name


@pytest.fixture
def image(service: str, tmp_path: Path) -> Path:
    """Build the contents of the image's /app."""
    build(service, tmp_path)
    return tmp_path


def _in(image: Path, service: str, code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {"PYTHONPATH": str(image), "HOME": str(image), "OMP_NUM_THREADS": "1"}
    command = command_with(EXTRA_OF[service], code, *arguments)
    return subprocess.run(command, cwd=image, capture_output=True, text=True, timeout=180, env=environment)


def test_every_module_imports_from_the_image_alone(image: Path, service: str) -> None:
    done = _in(image, service, IMPORT_EVERYTHING)
    assert done.returncode == 0, done.stderr


def test_the_entrypoint_answers(image: Path, service: str) -> None:
    done = _in(image, service, RUN, "--help")
    assert done.returncode == 0, done.stderr
    assert "--config" in done.stdout


def test_the_demo_model_of_the_image_is_what_its_service_needs(image: Path, service: str) -> None:
    folder = "drafter" if service == "drafter_service" else "target"
    config = image / "config.yaml"
    config.write_text(f"model: {{path: {image}/models/demo/{folder}}}\n", encoding="utf-8")
    done = _in(image, service, RUN, "check", "--config", str(config))
    name = "tokenizer" if service == "gateway" else "model"
    assert f'{{"name": "{name}", "status": "ok"' in done.stdout, done.stdout + done.stderr


def test_an_image_installs_its_extra_with_pinned_versions(service: str) -> None:
    (installation,) = [each.rest for each in dockerfile(service) if "pip install" in each.rest]
    assert re.findall(r"'(\.\[.*?\])'", installation) == [f".[{INSTALLED[service]},otel]"]
    assert "-c constraints.txt" in installation


@pytest.mark.parametrize("service", ["drafter_service", "verifier_service"])
def test_an_image_with_a_model_has_the_variables_of_a_service(service: str) -> None:
    variables = {variable for each in dockerfile(service) if each.word == "ENV" for variable in each.rest.split()}
    assert {f"{name}={value}" for name, value in with_defaults({}).items()} <= variables


def test_an_image_takes_its_own_folders_and_no_tests(service: str) -> None:
    taken = {source.relative_to(ROOT).parts[0] for source, _ in copied(service)}
    assert taken == {"specdec", service, "models"}


def test_the_build_context_holds_what_is_copied(service: str) -> None:
    let_in = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    for source, _ in copied(service):
        assert any(source.relative_to(ROOT).is_relative_to(each) for each in let_in)


def test_an_image_is_built_with_care(service: str) -> None:
    """Rules that hadolint does not check. `make lint` runs hadolint for the rest."""
    instructions = dockerfile(service)
    words = [each.word for each in instructions]
    stages = [index for index, word in enumerate(words) if word == "FROM"]
    assert len(stages) >= 2, "built in stages"
    assert "CMD" not in words
    assert ":" in instructions[0].rest, "the base has a tag"
    assert "latest" not in instructions[0].rest
    last = instructions[stages[-1] :]
    assert [each.rest for each in last if each.word == "USER"] == ["10001:10001"]
    assert last[-1].word == "ENTRYPOINT"
    assert last[-1].rest == f'["python", "-m", "{service}"]', "no shell between the process and its signals"


def test_the_images_of_both_models_are_built_alike() -> None:
    drafter, verifier = (str(dockerfile(service)) for service in ("drafter_service", "verifier_service"))
    alike = drafter.replace("drafter", "verifier").replace("demo/verifier", "demo/target").replace("50052", "50053")
    assert alike == verifier


def test_the_images_of_both_models_have_their_packages_in_common() -> None:
    """Layers are shared if all instructions before them are equal, and so are those of the stages they copy from."""
    drafter, verifier = (dockerfile(service) for service in ("drafter_service", "verifier_service"))
    shared = list(takewhile(lambda pair: pair[0] == pair[1], zip(drafter, verifier, strict=True)))
    assert Instruction("COPY", "specdec specdec") in [both for both, _ in shared]


@pytest.mark.parametrize("service", [*SERVICES, "verifier_service/vllm"])
def test_settings_of_pip_are_mounted_for_one_step(service: str) -> None:
    steps = [each.rest for each in dockerfile(service) if re.search(r"pip install|environment\.py", each.rest)]
    assert len(steps) == 1
    assert steps[0].startswith("--mount=type=secret,id=pip ")
    assert "PIP_CONFIG_FILE=/run/secrets/pip " in steps[0]


def test_the_image_with_vllm_copies_what_the_build_context_holds() -> None:
    let_in = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    copies = [each.rest.split()[:-1] for each in dockerfile("verifier_service/vllm") if each.word == "COPY"]
    for source in (each for sources in copies if not sources[0].startswith("--from") for each in sources):
        assert any(Path(source).is_relative_to(each) for each in let_in), source


def test_the_ports_of_an_image_are_those_of_the_chart(service: str) -> None:
    helpers = (ROOT / "helm" / "templates" / "_helpers.tpl").read_text(encoding="utf-8")
    (exposed,) = [each.rest.split() for each in dockerfile(service) if each.word == "EXPOSE"]
    assert all(re.search(rf"\b{port}\b", helpers) for port in exposed)
