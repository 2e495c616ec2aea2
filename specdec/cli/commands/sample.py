"""The sample of `specdec up`: one completion without drafts and one with drafts, and a line on the speed-up."""

import shlex
from dataclasses import replace

from rich.console import Console

from specdec.cli.client import GatewayClient
from specdec.cli.commands.compare import Comparison, both_ways, verdict
from specdec.cli.commands.run import show
from specdec.client.collect import collect
from specdec.client.events import GenerationResult, PromptRequest

_PROMPT = """\
class Stack:
    def __init__(self):
        self.items = []

    def push(self, item):
        self.items.append(item)

    def """
SAMPLE = PromptRequest(_PROMPT, max_tokens=64, temperature=0.0, seed=0, gamma=6)
_WARM_UP_TOKENS = 16
_PAIRS = 3
"""Number of timed pairs of runs; the first pair is shown."""


def show_sample(console: Console, gateway: GatewayClient, request: PromptRequest = SAMPLE) -> Comparison:
    """Stream a completion without drafts, then with drafts, and time more runs of both; raises the gateway's errors."""

    def generate(asked: PromptRequest) -> GenerationResult:
        return collect(gateway.stream(asked))

    off, drafted = both_ways(request)
    console.print(f"\nSample prompt:\n\n{request.prompt}\n", markup=False, highlight=False, soft_wrap=True)
    for warm_up in (off, drafted):
        generate(replace(warm_up, max_tokens=_WARM_UP_TOKENS))
    shown = []
    for name, asked in (("without drafts", off), ("with drafts", drafted)):
        console.rule(name, align="left", characters="-", style="dim")
        shown.append(show(console, gateway, asked, show_draft=True))
    pairs = [(shown[0], shown[1])]
    with console.status("timing both a few times more"):
        pairs += [(generate(off), generate(drafted)) for _ in range(_PAIRS - 1)]
    plain, speculative = zip(*pairs, strict=True)
    return Comparison(drafted, plain, speculative)


def last_line(found: Comparison, page: str, grpc: str) -> str:
    """One line with the speed-up, whether the tokens agree, the address of the page, and a command to try."""
    tokens = "the tokens are identical" if found.identical else "the tokens differ"
    address = [] if grpc == "127.0.0.1:50051" else ["--address", grpc]
    command = shlex.join(["specdec", "compare", "def main(", "--temperature", "0", *address])
    return f"{verdict(found).removesuffix('.')}, and {tokens}. Watch it at {page}; next, try: {command}"
