"""`specdec models`: the commands about folders of models."""

from typing import Annotated

import typer
from rich.console import Console

from specdec.cli import models as fetching
from specdec.cli.exit_codes import EPILOG

models = typer.Typer(help="Fetch models and list those that are here.", no_args_is_help=True)


@models.command("get", epilog=EPILOG)
def models_get(
    name: Annotated[str, typer.Argument(help="A known model's name, or a GGUF file to convert.")],
) -> None:
    """Fetch a known model, or convert a GGUF file, into a folder of the cache that `specdec up` finds by its name."""
    fetching.get(Console(), name)


@models.command("list", epilog=EPILOG)
def models_list() -> None:
    """Show the known models, and the folders of those that are here."""
    fetching.show(Console())
