"""The command itself: its groups of commands, its version, and how it ends."""

import io
import os
import sys
from typing import Annotated, TextIO

import typer
from rich.console import Console

from mistrnn import __version__
from mistrnn.errors import UsageError
from mistrnn.training.processes import leave
from mistrnn.training.provenance import code_digest

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
    """Run the command; what the caller can mend is one message on standard error and exit status 2.

    The status is 1 where standard output cannot be written: a full disk, or a reader who has left.
    """
    output = sys.stdout  # typer puts another in its place when a pipe breaks
    write_every_letter(sys.stdout)
    write_every_letter(sys.stderr)
    try:
        app()
    except UsageError as error:
        print(f"mist: {error}", file=sys.stderr)
        _write_failure(output, error)
        leave(2)
        sys.exit(2)
    except (OSError, SystemExit) as ending:
        failure = _write_failure(output, ending)
        if failure is not None:
            print(f"mist: cannot write to standard output: {failure.strerror}.", file=sys.stderr)
            leave(1)
            sys.exit(1)
        if isinstance(ending, SystemExit):
            leave(ending.code if isinstance(ending.code, int) else 0 if ending.code is None else 1)
        raise


def write_every_letter(output: TextIO | None, encoding: str | None = None) -> None:
    """Let letters that an output's encoding lacks be written by their numbers, instead of ending the command."""
    if isinstance(output, io.TextIOWrapper):
        output.reconfigure(encoding=encoding, errors="backslashreplace")


def _write_failure(output: TextIO | None, ending: BaseException) -> OSError | None:
    """Return why standard output could not be written, None if it could.

    After a failure, what is left in the buffer is dropped: Python would try once more at its end, and complain.
    """
    if output is None:
        return None
    failure: OSError
    if isinstance(ending, SystemExit) and isinstance(ending.__context__, BrokenPipeError):
        failure = ending.__context__  # rich and typer leave without a word then
    else:
        try:
            if isinstance(ending, OSError):
                output.write("\n")  # without a buffer only this fails again; if it does not, a traceback follows anyway
            output.flush()  # what could not be written is still in the buffer, and fails again
            return None
        except OSError as error:
            failure = error
    os.dup2(os.open(os.devnull, os.O_WRONLY), output.fileno())
    return failure


def version(value: bool) -> None:
    """Print the version and leave."""
    if value:
        print(f"mistrnn {__version__}, code {code_digest()}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Take the options before any command."""
