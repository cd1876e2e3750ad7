"""The command itself: its groups of commands, its version, and how it ends."""

import contextlib
import io
import os
import sys
from collections.abc import Iterator
from importlib import import_module
from typing import Annotated, Any, TextIO

import typer
from rich.console import Console
from typer.core import TyperCommand, TyperGroup

from mistrnn import __version__
from mistrnn._digest import code_digest
from mistrnn.cli._commands import COMMANDS, PANELS
from mistrnn.cli._threads import choose_threads, sample
from mistrnn.errors import UsageError


class LazyGroup(TyperGroup):
    """A group of COMMANDS: it knows the summary of each, and imports the one that is run."""

    def __init__(self, *, name: str, commands: dict[str, Any] | None = None, **options: Any) -> None:
        summaries = {
            command: TyperCommand(command, help=summary, rich_help_panel=PANELS[module] if name == "mist" else None)
            for command, (module, summary) in COMMANDS[name].items()
        }
        super().__init__(name=name, commands={**summaries, **(commands or {})}, **options)

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names in the order of COMMANDS."""
        return list(self.commands)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Import the command that is run, in place of its summary."""
        group = str(self.name)
        if args[0] in COMMANDS[group]:
            module, _ = COMMANDS[group][args[0]]
            with extra_named(args[0], "estimators" if module == "models" else "experiments"):
                import_module(f"mistrnn.cli.{module}")
            self.commands.update(typer.main.get_group(GROUPS[group]).commands)
        return super().resolve_command(ctx, args)


HELP = {"-h", "--help", "--version"}
SETTINGS: dict[str, Any] = {"cls": LazyGroup, "no_args_is_help": True, "pretty_exceptions_enable": False}
app = typer.Typer(
    name="mist",
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Recurrent layers with direct connections from the distant past: data, studies, models of your own recordings.",
    **SETTINGS,
)
data_app = typer.Typer(name="data", help="Get and check data sets.", **SETTINGS)
reproduce_app = typer.Typer(
    name="reproduce", help="Run the paper's tables and figures; what is there already is not run again.", **SETTINGS
)
app.add_typer(data_app, rich_help_panel=PANELS["studies"])
app.add_typer(reproduce_app, rich_help_panel=PANELS["paper"])
GROUPS = {"mist": app, "data": data_app, "reproduce": reproduce_app}

COMPUTING = {"fit", "tune", "train", "sweep", "demo", "gradients", "reproduce"}
"""Commands that say how many threads they take, if the load of the machine decides."""

console = Console()
load_at_start = sample()


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
        _leave(2)
        sys.exit(2)
    except (OSError, SystemExit) as ending:
        failure = _write_failure(output, ending)
        if isinstance(failure, BrokenPipeError) and not HELP.isdisjoint(sys.argv):
            sys.exit(0)  # as `mist --help | head`: the reader has all that it wants
        if failure is not None:
            print(f"mist: cannot write to standard output: {failure.strerror}.", file=sys.stderr)
            _leave(1)
            sys.exit(1)
        if isinstance(ending, SystemExit):
            _leave(ending.code if isinstance(ending.code, int) else 0 if ending.code is None else 1)
        raise


@contextlib.contextmanager
def extra_named(command: str, extra: str = "estimators") -> Iterator[None]:
    """Name the extra to install where a package is missing."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("mistrnn"):
            raise
        raise UsageError(
            f"`mist {command}` needs {error.name}, which is not installed: pip install 'mistrnn[{extra}]'."
        ) from error


def _leave(status: int) -> None:
    """End a process that has joined others; without torch, it has not."""
    if "torch" in sys.modules:
        from mistrnn.training.processes import leave

        leave(status)


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
    context: typer.Context,
    threads: Annotated[
        int | None,
        typer.Option("--threads", min=1, help="Threads to compute with (default: one for each core that is not busy)."),
    ] = None,
    version: Annotated[
        bool, typer.Option("--version", callback=version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Take the options before any command."""
    decided = choose_threads(threads, load_at_start)
    if decided is not None and context.invoked_subcommand in COMPUTING:
        print(f"mist: {decided}", file=sys.stderr)
