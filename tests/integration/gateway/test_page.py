"""The web page as a browser receives it: files, content policy and access."""

import re
from pathlib import Path

import httpx2
import pytest

from tests.integration.gateway.key_files import line, write
from tests.integration.gateway.stage import Stage, stage

STATIC = Path(__file__).parents[3] / "gateway" / "http" / "static"
FILES = sorted(path.name for path in STATIC.iterdir())


async def get(url: str, path: str, method: str = "GET") -> httpx2.Response:
    async with httpx2.AsyncClient(timeout=30) as client:
        return await client.request(method, url + path)


async def test_the_page_may_load_nothing_from_elsewhere(here: Stage) -> None:
    answer = await get(here.url, "/")
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    rules = dict(rule.split(" ", 1) for rule in answer.headers["content-security-policy"].split("; "))
    assert rules["default-src"] == "'none'"
    assert {sources for name, sources in rules.items() if name.endswith("-src")} == {"'none'", "'self'"}
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert not (await get(here.url, "/", "HEAD")).content


@pytest.mark.parametrize("name", FILES)
def test_no_file_names_another_place_or_has_a_style_of_its_own(name: str) -> None:
    text = (STATIC / name).read_text(encoding="utf-8").replace("http://www.w3.org/2000/svg", "")
    assert not re.search(
        r"https?://|//[a-z]+\.|style=|innerHTML|localStorage|sessionStorage|document\.cookie|\bon\w+=", text
    )


async def test_every_file_that_a_file_names_is_there(here: Stage) -> None:
    page = (await get(here.url, "/")).text
    named = set(re.findall(r'(?:href|src)="([^"]+)"', page))
    assert named
    for script in STATIC.glob("*.js"):
        named |= {f"page/{name}" for name in re.findall(r'from "\./([^"]+)"', script.read_text(encoding="utf-8"))}
    for path in named:
        answer = await get(here.url, f"/{path}")
        assert (answer.status_code, answer.headers["x-content-type-options"]) == (200, "nosniff")
    assert named == {f"page/{name}" for name in FILES if name != "index.html"}


async def test_what_is_no_file_of_the_page_is_not_found(here: Stage) -> None:
    for path in ("/page/none.js", "/page/", "/page/..%2froutes.py", "/page/index.html"):
        assert (await get(here.url, path)).status_code == 404


async def test_the_page_needs_no_key_and_the_api_does(tmp_path: Path) -> None:
    keys = write(tmp_path, line("secret", "acme"))
    async with stage(api_keys=keys) as here:
        for path in ("/", "/page/main.js"):
            assert (await get(here.url, path)).status_code == 200
        assert (await get(here.url, "/v1/models")).status_code == 401


async def test_the_page_can_be_left_out() -> None:
    async with stage(page=False) as here:
        for path in ("/", "/page/main.js"):
            assert (await get(here.url, path)).status_code == 404
