"""tune as a person uses it: a search that is durable, its model, and its report."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mistrnn import SequenceClassifier
from tests.cli.command import Mist
from tests.cli.recordings import frames, report_of, rows_of, write_folder

SEARCH = ["--hidden", 4, "--num-layers", 1, "--kernel-size", 3, "--epochs", 4, "--trials", 4, "--best", 2]
LONG = ["--hidden", 4, "--num-layers", 1, "--kernel-size", 3, "--epochs", 40, "--trials", 4, "--best", 2]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(tmp_path_factory.mktemp("tuned") / "in", columns=("a", "b"))


def tune(data: Path, out: Path, flags: list[Any]) -> list[Any]:
    return ["tune", data, "--labels", data / "labels.csv", "--group-column", "user", "--out", out, *flags]


def test_search_ends_with_a_model_and_a_report_with_its_trials(mist: Mist, tmp_path: Path, data: Path) -> None:
    out = tmp_path / "model"
    status, said, err = mist(*tune(data, out, SEARCH))
    assert status == 0, err
    assert "searched 4 trials and trained the best 2 in" in said
    assert "8 recordings: accuracy " in said
    assert {path.name for path in out.iterdir()} == {
        "config.json", "model.safetensors", "reading.json", "report", "search",
    }  # fmt: skip
    assert {path.name for path in (out / "search").iterdir()} == {"race", "refit"}
    about = report_of(out)["about"]
    assert (about["networks"], about["settings"]["n_trials"], about["settings"]["n_best"]) == (2, 4, 2)
    page = (out / "report" / "report.html").read_text()
    assert 'id="search"' in page
    assert "The model is the mean of the 2 chosen trials." in page
    assert "MIST, 4 units, mean of 2 networks" in page

    model = SequenceClassifier.from_pretrained(out)
    assert [len(model.network_.networks), len(model.trials_)] == [2, 4]
    assert model.get_params()["search_dir"] is None
    assert mist("predict", out, data, "--out", tmp_path / "p.csv")[0] == 0
    assert [row["id"] for row in rows_of(tmp_path / "p.csv")] == sorted(frames())
    evaluate = ["evaluate", out, data, "--labels", data / "labels.csv", "--out", tmp_path / "report"]
    assert mist(*evaluate)[0] == 0
    assert 'id="search"' in (tmp_path / "report" / "report.html").read_text()


def test_best_of_one_is_a_single_network(mist: Mist, tmp_path: Path, data: Path) -> None:
    status, said, err = mist(*tune(data, tmp_path / "model", [*SEARCH, "--trials", 2, "--best", 1]))
    assert status == 0, err
    assert "searched 2 trials and trained the best one in" in said
    assert "mean of" not in (tmp_path / "model" / "report" / "report.html").read_text()


def test_rows_and_numbers_are_tuned_too(mist: Mist, tmp_path: Path) -> None:
    rows = write_folder(tmp_path / "rows", columns=("a", "row_label", "user"))
    (rows / "labels.csv").unlink()
    flags = ["--label-column", "row_label", "--group-column", "user", *SEARCH, "--piece-length", 15]
    status, said, err = mist("tune", rows, *flags, "--out", tmp_path / "row-model")
    assert status == 0, err
    assert "labelled rows of 8 recordings: accuracy" in said
    data = write_folder(tmp_path / "in", columns=("a",))
    lines = [f"{name},{frame.a.mean():.3f}" for name, frame in frames().items()]
    (data / "labels.csv").write_text("id,label\n" + "\n".join(lines) + "\n")
    flags = ["--labels", data / "labels.csv", "--regress", *SEARCH]
    status, said, err = mist("tune", data, *flags, "--out", tmp_path / "number-model")
    assert status == 0, err
    assert "mean absolute error" in said


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, data: Path) -> dict[str, bytes]:
    """Return the weights of a search that nothing has stopped."""
    out = tmp_path_factory.mktemp("undisturbed") / "model"
    done = subprocess.run(command(data, out), env=ENVIRONMENT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return bits(out)


ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}


def command(data: Path, out: Path) -> list[str]:
    return [sys.executable, "-m", "mistrnn", *map(str, tune(data, out, LONG))]


def bits(out: Path) -> dict[str, bytes]:
    """Return what must be the same, however often the search was interrupted."""
    return {name: (out / name).read_bytes() for name in ("model.safetensors", "report/predictions.csv")}


@pytest.mark.parametrize("which", [signal.SIGINT, signal.SIGTERM])
def test_signal_stops_the_search_and_the_same_command_ends_with_the_same_bits(
    mist: Mist, tmp_path: Path, data: Path, undisturbed: dict[str, bytes], which: signal.Signals
) -> None:
    out = tmp_path / "model"

    def interrupt() -> None:
        while not (out / "search" / "race" / "study.json").exists():
            time.sleep(0.005)
        os.kill(os.getpid(), which)

    sender = threading.Thread(target=interrupt, daemon=True)
    sender.start()
    status, said, err = mist(*tune(data, out, LONG))
    assert status == 130, err
    assert "stopping after this epoch (once more breaks off at once)" in err
    assert said.splitlines()[-1] == f"stopped; saved in {out / 'search'}; the same command goes on from here."
    assert [path.name for path in out.iterdir()] == ["search"]
    assert (out / "search" / "race" / "checkpoint-000.safetensors").exists()
    assert mist(*tune(data, out, LONG))[0] == 0
    assert bits(out) == undisturbed


def test_killed_search_is_finished_by_the_same_command_to_the_same_bits(
    mist: Mist, tmp_path: Path, data: Path, undisturbed: dict[str, bytes]
) -> None:
    out = tmp_path / "model"
    (out / ".new-of-a-killed-process").mkdir(parents=True)
    with subprocess.Popen(command(data, out), env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as one:
        while not (out / "search" / "refit" / "study.json").exists() and one.poll() is None:
            time.sleep(0.005)
        one.kill()
    assert one.returncode == -signal.SIGKILL
    assert not (out / "config.json").exists()
    assert mist(*tune(data, out, LONG))[0] == 0
    assert bits(out) == undisturbed


def test_finished_search_is_not_run_again_and_another_needs_fresh(mist: Mist, tmp_path: Path, data: Path) -> None:
    out = tmp_path / "model"
    assert mist(*tune(data, out, SEARCH))[0] == 0
    before, trials = bits(out), (out / "search" / "race" / "trials.jsonl").stat().st_mtime_ns
    status, _, err = mist(*tune(data, out, SEARCH))
    assert status == 2
    assert "overwrite a model with --force (a finished search is not run again)" in err
    assert mist(*tune(data, out, SEARCH), "--force")[0] == 0
    assert bits(out) == before
    assert (out / "search" / "race" / "trials.jsonl").stat().st_mtime_ns == trials

    other = [*tune(data, out, SEARCH), "--force", "--learning-rate", 0.02]
    status, _, err = mist(*other)
    assert status == 2
    assert "holds another search; what differs" in err
    assert bits(out) == before
    (out / "search" / "race" / "models" / "mine.txt").write_text("mine")
    assert mist(*other, "--fresh")[0] == 0
    assert bits(out) != before
    assert (out / "search" / "race" / "models" / "mine.txt").read_text() == "mine"
    first = json.loads((out / "search" / "race" / "trials.jsonl").read_text().splitlines()[0])
    assert first["learning_rate"] == 0.02

    # A single fit takes the place of the model, and leaves the search.
    assert mist("fit", *tune(data, out, [])[1:], "--hidden", 4, "--epochs", 1, "--force")[0] == 0
    assert (out / "search" / "race").exists()


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (["--trials", 1], "expected --trials from 2 on, because one trial is `mist fit`, got 1."),
        (["--best", 0], "expected n_best to be a whole number from 1 on, got 0."),
        (["--validation-share", 1], "expected validation_fraction to be a number between 0 and 1, got 1.0."),
        (["--engine", "spark"], "expected --engine among embedded, ray, got 'spark'"),
        (["--workers", 2], "--workers belongs to --engine ray"),
        (["--engine", "ray", "--workers", 0], "expected workers >= 1, got 0"),
        (["--hidden", 0], "expected hidden_size to be a whole number from 1 on, got 0."),
        (["--layer", "lstm", "--delays", 3], "lstm: expected no --delays, because they belong to mist and narx."),
        (["--label-column", "x", "--per-recording"], "expected no --per-recording with --labels"),
    ],
)
def test_wrong_flags_are_refused_before_anything_is_read_or_written(
    mist: Mist, tmp_path: Path, flags: list[Any], expected: str
) -> None:
    missing = tmp_path / "there-are-no-such-recordings"
    status, _, err = mist(*tune(missing, tmp_path / "model", flags))
    assert status == 2
    assert expected in err
    assert list(tmp_path.iterdir()) == []


def test_folders_that_hold_something_else_are_refused(mist: Mist, tmp_path: Path, data: Path) -> None:
    out = tmp_path / "model"
    (out / "search").mkdir(parents=True)
    (out / "search" / "mine.txt").write_text("mine")
    status, _, err = mist(*tune(data, out, SEARCH))
    assert status == 2
    assert f"{out / 'search'}: expected a search, got other files (mine.txt). Choose another --out." in err
    assert mist(*tune(data, out, SEARCH), "--force", "--fresh")[0] == 2
    (out / "search" / "mine.txt").unlink()
    (out / "search").rmdir()
    (out / "search").write_text("mine")
    status, _, err = mist(*tune(data, out, SEARCH))
    assert status == 2
    assert f"{out / 'search'}: expected a folder for the search, got a file. Choose another --out." in err
    (out / "search").unlink()
    (out / "notes.txt").write_text("mine")
    assert "overwrite a model with --force.\n" in mist(*tune(data, out, SEARCH))[2]
    assert mist(*tune(data, out, SEARCH), "--force")[0] == 0
    assert (out / "notes.txt").read_text() == "mine"
    assert np.isfinite(report_of(out)["accuracy"])
