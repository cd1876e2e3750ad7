"""The command before anything heavy is imported: help, version, completion."""

import os
import subprocess
import sys
from importlib import import_module

import pytest

from mistrnn import __version__
from mistrnn.cli._app import GROUPS
from mistrnn.cli._commands import COMMANDS
from tests.cli.command import Mist

WITHOUT_TORCH = """
import sys

class Heavy:
    def find_spec(self, name, path=None, target=None):
        if name in ("torch", "numpy", "matplotlib"):
            raise ImportError(f"{name} is heavy")

sys.meta_path.insert(0, Heavy())
from mistrnn.__main__ import main

sys.argv[0] = "mist"
main()
"""


def light(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the command in a process in which torch, numpy and matplotlib cannot be imported."""
    command = [sys.executable, "-c", WITHOUT_TORCH, *arguments]
    return subprocess.run(command, capture_output=True, text=True, env={**os.environ, **environment}, check=False)


@pytest.mark.parametrize("group", list(COMMANDS))
@pytest.mark.parametrize("flag", ["-h", "--help"])
def test_help_of_a_group_lists_its_commands_without_torch(group: str, flag: str) -> None:
    done = light(*([] if group == "mist" else [group]), flag)
    assert (done.returncode, done.stderr) == (0, "")
    for command in COMMANDS[group]:
        assert f"│ {command} " in done.stdout


def test_version_is_printed_without_torch() -> None:
    done = light("--version")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"mistrnn {__version__}, code ")


def test_help_of_a_command_lists_its_options(mist: Mist) -> None:
    status, out, _ = mist("train", "-h")
    assert status == 0
    assert "--learning-rate" in out


@pytest.mark.parametrize(("group", "commands"), COMMANDS.items())
def test_summaries_are_the_first_lines_of_the_docstrings(group: str, commands: dict[str, tuple[str, str]]) -> None:
    for module, _ in commands.values():
        import_module(f"mistrnn.cli.{module}")
    found = {}
    for registered in GROUPS[group].registered_commands:
        function = registered.callback
        assert function is not None
        place = function.__module__.rpartition(".")[2]
        found[registered.name or function.__name__] = (place, str(function.__doc__).splitlines()[0])
    assert found == commands


def test_help_for_a_reader_who_leaves_ends_without_an_error() -> None:
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        [sys.executable, "-m", "mistrnn", "--help"], stdout=write, stderr=subprocess.PIPE, text=True, check=False
    )
    os.close(write)
    assert (done.returncode, done.stderr) == (0, "")


def test_unknown_command_names_a_close_one() -> None:
    done = light("trian")
    assert done.returncode == 2
    assert "No such command 'trian'" in done.stderr
    assert "'train'" in done.stderr


def test_shell_completion_offers_commands_without_torch() -> None:
    done = light(_MIST_COMPLETE="complete_bash", COMP_WORDS="mist re", COMP_CWORD="1")
    assert done.stdout.split() == ["report", "reproduce"]


def test_missing_package_of_a_command_names_the_extra(mist: Mist, monkeypatch: pytest.MonkeyPatch) -> None:
    def without_pyarrow(name: str) -> None:
        raise ModuleNotFoundError("No module named 'pyarrow'", name="pyarrow")

    monkeypatch.setattr("mistrnn.cli._app.import_module", without_pyarrow)
    status, _, err = mist("fit", "recordings")
    assert status == 2
    assert err == "mist: `mist fit` needs pyarrow, which is not installed: pip install 'mistrnn[estimators]'.\n"
