"""The page in a headless browser: user actions and what the page shows."""

import json
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.page.chromium import missing, started, told
from tests.e2e.system import System, running_system
from tests.integration.gateway.key_files import line, write

KEY = "secret-of-the-page"
TOKENS = 24
"""Longest output of the scene with a prompt. The model may end it earlier."""

pytestmark = [pytest.mark.skipif(bool(missing()), reason=missing()), pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    """Run a system that requires an API key."""
    folder = tmp_path_factory.mktemp("guarded")
    with running_system(folder, "--api-keys", str(write(folder, line(KEY, "acme")))) as running:
        yield running


@pytest.fixture(scope="module")
def scenes(guarded: System, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return the observations of every scene."""
    found: dict[str, Any] = json.loads(told(tmp_path_factory.mktemp("browser"), "scenes.mjs", guarded.http, KEY))
    return found


def test_a_key_is_asked_for_and_never_stored(scenes: dict[str, Any]) -> None:
    seen = scenes["keys"]
    assert (seen["focused"], seen["stored"], seen["visible"], seen["model"]) == ("key", 0, False, "demo")


@pytest.mark.parametrize("name", ["keys", "prompt", "chat"])
def test_nothing_fails_and_nothing_is_loaded_from_elsewhere(guarded: System, scenes: dict[str, Any], name: str) -> None:
    assert scenes[name]["errors"] == []
    assert scenes[name]["origins"] == [guarded.http]


def test_both_ways_stand_side_by_side_and_their_speeds_are_compared(scenes: dict[str, Any]) -> None:
    seen = scenes["prompt"]
    assert seen["titles"] == ["with speculation", "without speculation"]
    assert set(seen["plain"]) == {"plain"}
    assert 0 < len(seen["plain"]) <= TOKENS
    assert "in 3 runs" in seen["verdict"]
    slower, faster, alike, plain = scenes["keys"]["verdicts"]
    assert slower.startswith("Slower here: 0.45 times the speed without drafts (0.40 to 0.50 in 2 runs)")
    assert faster.startswith("2.00 times the speed without drafts (1.80 to 2.40 in 3 runs), identical tokens")
    assert alike.startswith("No difference: 0.97 to 1.05 in 2 runs")
    assert "no drafts were used, because the server expects no gain" in plain


def test_a_card_shows_the_entropy_of_each_step_of_egag(scenes: dict[str, Any]) -> None:
    seen = scenes["keys"]["entropic"]
    cells = dict(zip(seen["head"], seen["cells"], strict=True))
    assert (cells["H_norm"], cells["γ"]) == ("0.2500", "6")
    assert seen["lines"][1].startswith("γ = 6: chosen by the drafter, by the entropy of its distributions (EGAG)")


def test_tokens_show_their_origin_and_rejected_ones_precede_corrections(scenes: dict[str, Any]) -> None:
    pieces = scenes["prompt"]["pieces"]
    assert 0 < sum(piece["kind"] != "rejected" for piece in pieces) <= TOKENS
    assert {piece["name"] for piece in pieces if piece["kind"] == "rejected"} == {"del"}
    assert all(re.fullmatch(f"{piece['kind']}: .+", piece["title"]) for piece in pieces)
    for number in {piece["round"] for piece in pieces}:
        kinds = [piece["kind"] for piece in pieces if piece["round"] == number]
        order = ["accepted", "rejected", "recovered", "bonus", "plain"]
        assert kinds == sorted(kinds, key=order.index)
        assert number == pieces[-1]["round"] or ("rejected" in kinds) == (kinds[-1] == "recovered")


def test_every_round_has_a_card_whose_numbers_agree_with_its_verdict(scenes: dict[str, Any]) -> None:
    seen = scenes["prompt"]
    assert len(seen["cards"]) == len(seen["strip"])
    rows = []
    for card, short in zip(seen["cards"], seen["strip"], strict=True):
        assert any(part in card["lines"][-1] for part in ("draft", "network", "queue", "pass"))
        assert "γ = " in card["lines"][1]
        accepted = sum(row[-2] == "accepted" for row in card["rows"])
        assert short == (f"{accepted}/{len(card['rows'])}" if card["rows"] else "·")
        if card["rows"]:
            assert card["head"] == ["token", "p", "q", "min(1, p/q)", "u", "verdict", "source"]
        rows += card["rows"][: accepted + 1]
    cut = len(seen["cards"][-1]["rows"])  # the end of the output may cut off accepted tokens
    judged = [(float(row[3]), float(row[4]), row[5]) for row in rows[: len(rows) - cut]]
    assert all((u <= ratio) if verdict == "accepted" else (u >= ratio) for ratio, u, verdict in judged)
    assert {verdict for _, _, verdict in judged} == {"accepted", "rejected"}
    assert {row[-1] for row in rows} == {"model"}


def test_acceptance_is_shown_by_position(scenes: dict[str, Any]) -> None:
    seen = scenes["prompt"]
    cards = [card["rows"] for card in seen["cards"] if card["rows"]]
    first = sum(rows[0][-2] == "accepted" for rows in cards) / len(cards)
    assert seen["positions"][0] == pytest.approx(first)
    assert len(seen["positions"]) <= 4


def test_a_chat_goes_on_and_shows_text_as_text(scenes: dict[str, Any]) -> None:
    seen = scenes["chat"]
    assert seen["roles"] == ["user", "assistant"] * 2
    assert (seen["first"], seen["bold"]) == ("<b>Read</b> a file.", 0)
    assert seen["curl"].count('"role":"assistant"') == 1


def test_the_keyboard_is_enough(scenes: dict[str, Any]) -> None:
    seen = scenes["keyboard"]
    assert seen["stopped"] == "stopped"
    assert seen["card"].startswith("Round 2,")
    assert seen["marked"] == ["1"]


def test_it_fits_390_pixels_and_can_be_read_in_both_schemes(scenes: dict[str, Any]) -> None:
    seen = scenes["narrow"]
    assert seen["width"] == 390
    assert min(seen["contrasts"].values()) >= 4.5


def test_no_script_but_the_pages_own_runs(scenes: dict[str, Any]) -> None:
    assert scenes["keys"]["injected"] is False


def test_the_copied_command_runs(scenes: dict[str, Any]) -> None:
    seen = scenes["keys"]
    assert seen["copied"] == seen["curl"]
    done = subprocess.run(
        ["bash", "-c", f"NO_PROXY=127.0.0.1 {seen['curl']} --fail-with-body --silent"],
        env=os.environ | {"SPECDEC_API_KEY": KEY},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout
    assert '"rounds"' in done.stdout
    assert done.stdout.rstrip().endswith("[DONE]")


def test_it_is_said_when_the_drafter_is_gone_and_when_it_is_back(guarded: System, tmp_path: Path) -> None:
    pid = guarded.one("drafter")["pid"]
    with started(tmp_path, "drafter_gone.mjs", guarded.http, KEY) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "watching\n"
        os.kill(pid, signal.SIGSTOP)
        try:
            assert process.stdout.readline().startswith("No drafter answers")
            assert "without a draft: drafter_unavailable" in process.stdout.readline()
        finally:
            os.kill(pid, signal.SIGCONT)
        assert process.stdout.readline() == "hidden\n"
