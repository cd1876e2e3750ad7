"""The `mist` command in the process of the tests."""

import sys

import pytest

from mistrnn import cli

SMALL = [
    "--delay",
    "10",
    "--hidden",
    "6",
    "--delays",
    "3",
    "--batch-size",
    "5",
    "--steps",
    "6",
    "--validate-every",
    "3",
]
"""The flags of a small study of the copy problem with a MIST layer."""


class Mist:
    """Runs the command in this process."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self._patch, self._capsys = monkeypatch, capsys

    def __call__(self, *arguments: object) -> tuple[int, str, str]:
        self._patch.setattr(sys, "argv", ["mist", *map(str, arguments)])
        try:
            cli.run()
            status = 0
        except SystemExit as leaving:
            status = leaving.code if isinstance(leaving.code, int) else 0 if leaving.code is None else 1
        printed = self._capsys.readouterr()
        return status, printed.out, printed.err
