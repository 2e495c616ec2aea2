"""Writes docs/readme/terminal.svg from a gateway that runs: `python docs/terminal_picture.py [HOST:PORT]`."""

import io
import sys
from contextlib import closing
from pathlib import Path

from rich.console import Console
from rich.text import Text

from specdec.cli.client import GatewayClient
from specdec.cli.commands.render import legend, paint, pieces
from specdec.client.collect import collect
from specdec.client.connection import GatewayConnection
from specdec.client.events import PromptRequest, RoundEvent

PICTURE = Path(__file__).parent / "readme" / "terminal.svg"
PROMPT = "def main("


def add(text: Text, round_: RoundEvent) -> None:
    """Append the text of a round, each piece in its style."""
    for piece in pieces(round_, show_draft=True):
        text.append_text(paint(piece, styled=True))


def picture(address: str) -> str:
    """The rounds of a generation as they look on a terminal; without times, which depend on the machine."""
    console = Console(record=True, width=88, force_terminal=True, color_system="truecolor", file=io.StringIO())
    command = f'specdec run "{PROMPT}" --show-draft --temperature 0'
    console.print(f"$ {command}", style="bold", highlight=False)
    console.print(legend(styled=True, show_draft=True))
    text = Text()
    request = PromptRequest(PROMPT, max_tokens=96, temperature=0.0, gamma=6)
    with closing(GatewayClient(GatewayConnection(address, ""))) as gateway:
        result = collect(gateway.stream(request), lambda round_: add(text, round_))
    console.print(text, width=86)
    finished = result.finished
    counts = f"\n{finished.completion_tokens} tokens in {finished.rounds} passes of the target"
    console.print(f"{counts} · {finished.accepted} of {finished.drafted} drafts accepted", style="dim")
    return console.export_svg(title="specdec", unique_id="specdec")


if __name__ == "__main__":
    PICTURE.write_text(picture(sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:50051"), encoding="utf-8")
    sys.stdout.write(f"{PICTURE}\n")
