"""What the tests of the command share."""

import contextlib
import sys
from pathlib import Path

import pytest

from mistrnn import cli
from mistrnn.cli import _app
from tests.cli.command import Mist
from tests.cli.recordings import SMALL, write_folder


@pytest.fixture
def mist(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Mist:
    monkeypatch.setattr(_app.console, "_width", 200)  # wide enough for every table
    return Mist(monkeypatch, capsys)


@pytest.fixture(scope="module")
def fitted(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Return a model of recordings and its data."""
    place = tmp_path_factory.mktemp("fitted")
    data = write_folder(place / "in")
    arguments = ["fit", data, "--labels", data / "labels.csv", "--columns", "a,b", "--out", place / "model", *SMALL]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["mist", *map(str, arguments)])
        with contextlib.suppress(SystemExit):
            cli.run()
    return place / "model", data
