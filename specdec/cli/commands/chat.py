"""`specdec chat`: a conversation on the console; the gateway stores its turns in a session."""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace

from rich.console import Console

from specdec.cli import options
from specdec.cli.client import GatewayClient
from specdec.cli.commands.run import show
from specdec.client.connection import GatewayConnection
from specdec.client.events import PromptRequest
from specdec.errors import RequestError


def command(
    session: options.Session = "",
    show_draft: options.ShowDraft = False,
    max_tokens: options.MaxTokens = options.DEFAULT_TOKENS,
    temperature: options.Temperature = None,
    top_p: options.TopP = None,
    gamma: options.Gamma = None,
    mode: options.ModeOption = None,
    user: options.User = "",
    address: options.Address = options.DEFAULT_ADDRESS,
    api_key: options.ApiKey = "",
    ca: options.Authority = None,
) -> None:
    """Talk with the model, line by line; the gateway keeps the conversation in a session."""
    request = PromptRequest("", max_tokens, temperature, top_p, gamma=gamma, mode=mode, user=user, session=session)
    chat(Console(), GatewayConnection(address, api_key, ca), request, show_draft)


def chat(console: Console, connection: GatewayConnection, request: PromptRequest, show_draft: bool) -> None:
    """Answer line after line until the input ends; a request that names a session continues it.

    If the gateway refuses a line, for example because it is too long for the context, the reason is printed and the
    session does not change.
    """
    with closing(GatewayClient(connection)) as gateway:
        session = request.session or gateway.create_session(request.user)
        _say(console, f"session {session}: `specdec chat --session {session}` comes back to it; Ctrl-D ends")
        for line in _lines(console):
            try:
                show(console, gateway, replace(request, prompt=line, chat=True, session=session), show_draft)
            except RequestError as error:
                _say(console, f"refused: {error.message}")


def _lines(console: Console) -> Iterator[str]:
    """Lines that the user types, without empty lines."""
    while True:
        try:
            line = console.input("> ")
        except EOFError:
            console.print()
            return
        if line.strip():
            yield line


def _say(console: Console, text: str) -> None:
    console.print(text, style="dim", markup=False, highlight=False, soft_wrap=True)
