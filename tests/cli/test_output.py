"""Standard output that cannot be written: a reader who has left, a full disk."""

import os
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

from tests.cli.recordings import SMALL

ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": ""}


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "mistrnn", *map(str, arguments)]


def evaluation(fitted: tuple[Path, Path], out: Path) -> list[str]:
    model, data = fitted
    return command("evaluate", model, data, "--labels", data / "labels.csv", "--out", out)


def test_report_is_saved_whoever_reads_what_is_printed(fitted: tuple[Path, Path], tmp_path: Path) -> None:
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        evaluation(fitted, tmp_path), stdout=write, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT, check=False
    )
    os.close(write)
    assert (done.returncode, done.stderr) == (1, "mist: cannot write to standard output: Broken pipe.\n")
    assert {"report.json", "predictions.csv"} < {path.name for path in tmp_path.iterdir()}


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_fit_saves_model_and_report_if_the_reader_leaves_during_training(
    fitted: tuple[Path, Path], tmp_path: Path, unbuffered: str
) -> None:
    data, model, pipe = fitted[1], tmp_path / "model", subprocess.PIPE
    fit = command("fit", data, "--labels", data / "labels.csv", "--columns", "a", "--out", model, *SMALL)
    environment = {**ENVIRONMENT, "PYTHONUNBUFFERED": unbuffered}
    with subprocess.Popen(fit, stdout=pipe, stderr=pipe, text=True, env=environment) as process:
        assert process.stdout
        assert process.stderr
        while not process.stdout.readline().startswith("held out"):
            pass
        process.stdout.close()
        err = process.stderr.read()
        assert process.wait(timeout=60) == 1
    assert err.splitlines()[-1] == "mist: cannot write to standard output: Broken pipe."
    assert "Traceback" not in err
    assert {path.name for path in model.iterdir()} == {"config.json", "model.safetensors", "reading.json", "report"}


def test_letters_that_the_terminal_lacks_are_written_by_their_numbers(
    fitted: tuple[Path, Path], tmp_path: Path
) -> None:
    labels = pd.read_csv(fitted[1] / "labels.csv", dtype=str).replace({"label": {"01": "läuft"}})
    labels.to_csv(tmp_path / "labels.csv", index=False)
    data = tmp_path / "in"
    data.mkdir()
    for path in fitted[1].glob("0*.csv"):
        (data / path.name).write_bytes(path.read_bytes())
    fit = command("fit", data, "--labels", tmp_path / "labels.csv", "--columns", "a", "--out", tmp_path / "m", *SMALL)
    environment = {**ENVIRONMENT, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(fit, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    assert "2 classes: 02 12, l\\xe4uft 12" in done.stdout
    assert "läuft" in (tmp_path / "m" / "report" / "predictions.csv").read_text(encoding="utf-8")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device that is always full is there on Linux")
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_full_disk_behind_standard_output_is_one_message(
    fitted: tuple[Path, Path], tmp_path: Path, unbuffered: str
) -> None:
    model, data = fitted
    commands = [
        command("fit", data, "--labels", data / "labels.csv", "--columns", "a", "--out", tmp_path / "model", *SMALL),
        evaluation(fitted, tmp_path / "report"),
        command("predict", model, data, "--out", tmp_path / "p.csv"),
        command("stream", model),
    ]
    environment = {**ENVIRONMENT, "PYTHONUNBUFFERED": unbuffered}
    for one in commands:
        with open("/dev/full", "w") as full:
            done = subprocess.run(
                one, input="1,2\n", stdout=full, stderr=subprocess.PIPE, text=True, env=environment, check=False
            )
        assert (done.returncode, done.stderr) == (
            1,
            "mist: cannot write to standard output: No space left on device.\n",
        )
    assert (tmp_path / "report" / "report.json").exists()
    assert (tmp_path / "p.csv").exists()
