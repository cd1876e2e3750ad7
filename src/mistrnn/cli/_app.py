"""The command itself: its groups of commands, its version, and how it ends."""

import sys
from typing import Annotated

import typer
from rich.console import Console

from mistrnn import __version__
from mistrnn.errors import UsageError
from mistrnn.training.processes import leave

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Recurrent layers with direct connections from the distant past: data, studies, models of your own recordings.",
)
data_app = typer.Typer(no_args_is_help=True, help="Get and check data sets.")
app.add_typer(data_app, name="data")
reproduce_app = typer.Typer(
    no_args_is_help=True, help="Run the paper's tables and figures; what is there already is not run again."
)
app.add_typer(reproduce_app, name="reproduce")

console = Console()


def run() -> None:
    """Run the command; what the caller can mend is one message on standard error and exit status 2."""
    try:
        app()
    except UsageError as error:
        print(f"mist: {error}", file=sys.stderr)
        leave(2)
        sys.exit(2)
    except SystemExit as leaving:
        leave(leaving.code if isinstance(leaving.code, int) else 0 if leaving.code is None else 1)
        raise


def version(value: bool) -> None:
    """Print the version and leave."""
    if value:
        print(f"mistrnn {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Take the options before any command."""
