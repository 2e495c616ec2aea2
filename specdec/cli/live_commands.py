"""The commands that stay on the console: a conversation, and a look at the fleet."""

from typing import Annotated

import typer
from rich.console import Console

from specdec.cli import chat as chatting
from specdec.cli import options
from specdec.cli import top as topping
from specdec.cli.fleet import Fleet, urls_of
from specdec.cli.signals import stop_on_signals
from specdec.client.connection import GatewayConnection
from specdec.client.events import PromptRequest


def chat(
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
    chatting.chat(Console(), GatewayConnection(address, api_key, ca), request, show_draft)


def top(
    sources: options.Processes = None,
    state: options.StateFile = None,
    every: Annotated[float, typer.Option(min=0.2, help="Seconds between two looks.")] = 2.0,
    looks: Annotated[int, typer.Option(min=0, help="Looks after which it ends; 0 is never.")] = 0,
    api_key: options.ApiKey = "",
) -> None:
    """Show gateways, verifiers and drafters live, by their metrics; without options, those of `specdec up`."""
    fleet = Fleet(urls_of(sources or (), state), api_key)
    with stop_on_signals() as stop:
        topping.top(Console(), fleet, every, looks, stop)
