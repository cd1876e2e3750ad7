"""Data larger than memory: it is prepared, trained on and evaluated in a process that could not hold it."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mistrnn.training import Recorded, run_study
from tests.tasks.limited_study import ROOM, STUDY


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A folder that is gone at the end, because what it holds is large."""
    yield tmp_path
    shutil.rmtree(tmp_path)


def outcome(folder: Path) -> tuple[list[dict[str, Any]], dict[str, bytes]]:
    """All rows, curves and models of a study, bit for bit, timings aside."""
    rows = [{name: value for name, value in row.items() if name != "seconds"} for row in Recorded(folder).trials()]
    return rows, {path.name: path.read_bytes() for path in folder.rglob("*.safetensors")}


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux counts all memory against RLIMIT_DATA")
def test_data_larger_than_memory_trains_as_if_there_were_enough(folder: Path) -> None:
    command = [sys.executable, "-W", "error", "-m", "tests.tasks.limited_study", str(folder)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command, cwd=Path(__file__).parents[2], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "does not fit into memory\n"
    assert (folder / "data" / "inputs.npy").stat().st_size > 2 * ROOM
    run_study(STUDY, folder / "free", data=folder / "data", device="cpu")
    rows, files = outcome(folder / "limited")
    assert [row["status"] for row in rows] == ["ok"] * STUDY.trials
    assert len(files) == STUDY.trials + 1
    assert (rows, files) == outcome(folder / "free")
