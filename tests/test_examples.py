"""The examples, run as a person runs them, on small data."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from mistrnn import FrameLabeler, SequenceClassifier
from tests.tasks.recorded_files import write_hapt

EXAMPLES = Path(__file__).parents[1] / "examples"


def run(name: str, *arguments: object) -> str:
    command = [sys.executable, str(EXAMPLES / name), *map(str, arguments)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_example_is_run_here() -> None:
    assert sorted(path.name for path in EXAMPLES.iterdir() if path.suffix == ".py") == [
        "hapt_streaming.py",
        "lightning_mist.py",
    ]


def test_hapt_goes_from_raw_files_to_a_stream(tmp_path: Path) -> None:
    printed = run("hapt_streaming.py", write_hapt(tmp_path / "hapt"), "--out", tmp_path / "out", "--epochs", 2)
    assert "30 recordings of 30 people" in printed
    assert "100.0% as predict says" in printed
    for picture in ("confusion.png", "listening.png", "streamed.png"):
        assert (tmp_path / "out" / picture).read_bytes().startswith(b"\x89PNG")
    assert len(SequenceClassifier.from_pretrained(tmp_path / "out/classifier").classes_) == 3
    assert FrameLabeler.from_pretrained(tmp_path / "out/labeler").n_channels_ == 6


@pytest.mark.skipif(importlib.util.find_spec("lightning") is None, reason="Lightning is not installed")
def test_a_layer_trains_in_lightning(tmp_path: Path) -> None:
    printed = run(
        "lightning_mist.py", "--steps", 30, "--epochs", 4, "--parameters", 2000, "--log-dir", tmp_path / "log"
    )
    accuracy = float(printed.split("): ")[-1].split("%")[0])
    assert accuracy > 90
    assert list((tmp_path / "log").rglob("events.out.tfevents*"))
