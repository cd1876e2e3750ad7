"""fit, predict, evaluate, stream and export as a person uses them, on small files of their own."""

import contextlib
import csv
import errno
import inspect
import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from mistrnn import FrameLabeler, SequenceClassifier, SequenceRegressor, cli
from mistrnn.cli import _model_folder, _own_data
from mistrnn.cli._live import answer_lines
from mistrnn.errors import UsageError
from tests.test_cli import Mist

SMALL = ["--hidden", 6, "--epochs", 4]
USERS, CLASSES, EACH = ("001", "002", "003"), ("01", "02"), 4


@pytest.fixture
def mist(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Mist:
    return Mist(monkeypatch, capsys)


def frames() -> dict[str, pd.DataFrame]:
    """Return recordings by id: class 01 rises, 02 falls, and each row says so, with a gap at the start."""
    random = np.random.default_rng(0)
    found = {}
    for user in USERS:
        for label in CLASSES:
            for number in range(EACH):
                count = int(random.integers(20, 40))
                slope = np.linspace(-1, 1, count) * (1 if label == "01" else -1)
                frame = pd.DataFrame({"t": np.arange(count) / 10, "b": random.normal(size=count), "a": 50 + 10 * slope})
                frame["row_label"] = np.where(slope > 0, "high", "low")
                frame.loc[:2, "row_label"] = None
                frame["label"], frame["user"] = label, user
                found[f"{user}-{label}-{number}"] = frame
    return found


def labels_of(names: list[str]) -> pd.DataFrame:
    parts = [name.split("-") for name in names]
    return pd.DataFrame(
        {"file": [f"{name}.csv" for name in names], "label": [p[1] for p in parts], "user": [p[0] for p in parts]}
    )


def write_folder(place: Path, kind: str = "csv", columns: tuple[str, ...] = ("t", "b", "a")) -> Path:
    """Write a folder of recordings, and labels.csv in it."""
    place.mkdir()
    found = frames()
    for name, frame in found.items():
        if kind == "csv":
            frame[list(columns)].to_csv(place / f"{name}.csv", index=False)
        else:
            np.savez(place / f"{name}.npz", **{key: frame[key].to_numpy() for key in columns})
    labels_of(list(found)).to_csv(place / "labels.csv", index=False)
    return place


def write_long(path: Path) -> Path:
    parts = [frame.assign(rec=name) for name, frame in frames().items()]
    table = pd.concat(parts).sample(frac=1, random_state=0)  # in any order: t says which
    table.to_parquet(path)
    return path


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


def rows_of(path: Path) -> list[dict[str, str]]:
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def report_of(model: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((model / "report" / "report.json").read_text())
    return found


@pytest.mark.parametrize("kind", ["csv", "npz"])
def test_folder_with_labels_leads_to_predictions_and_a_report(mist: Mist, tmp_path: Path, kind: str) -> None:
    data, model = write_folder(tmp_path / "in", kind), tmp_path / "model"
    status, out, err = mist(
        "fit", data, "--labels", data / "labels.csv", "--time-column", "t", "--group-column", "user", "--out", model,
        "--hidden", 8, "--epochs", 15, "--learning-rate", 0.02,
    )  # fmt: skip
    assert status == 0, err
    assert "24 recordings of" in out
    assert "inputs: b, a" in out
    assert "2 classes: 01 12, 02 12" in out
    trained, held = (
        set(re.findall(r"\d{3}", re.search(rf"{word}: .*\(user (.*)\)", out)[1])) for word in ("trained on", "held out")
    )  # type: ignore[index]
    assert trained | held == set(USERS)
    assert trained
    assert held
    assert not trained & held
    about = report_of(model)["about"]
    assert {name[:3] for name in about["trained_on"]} == trained
    assert {name[:3] for name in about["held_out"]} == held
    assert report_of(model)["accuracy"] == 1.0
    assert {"config.json", "model.safetensors", "reading.json", "report"} == {path.name for path in model.iterdir()}

    status, out, err = mist("predict", model, data, "--out", tmp_path / "new" / "predictions.csv")
    assert (status, err) == (0, "")
    rows = rows_of(tmp_path / "new" / "predictions.csv")
    assert list(rows[0]) == ["id", "label", "probability", "p_01", "p_02"]
    assert [row["id"] for row in rows] == sorted(frames())
    assert all(row["label"] == row["id"].split("-")[1] for row in rows)
    assert all(abs(float(row["p_01"]) + float(row["p_02"]) - 1) < 1e-5 for row in rows)

    status, out, err = mist("evaluate", model, data, "--labels", data / "labels.csv", "--out", tmp_path / "report")
    assert (status, err) == (0, "")
    assert "24 recordings: 100.0% right" in out
    assert json.loads((tmp_path / "report" / "report.json").read_text())["accuracy"] == 1.0


def test_long_table_with_row_labels_keeps_the_order_of_its_rows(mist: Mist, tmp_path: Path) -> None:
    path, model = write_long(tmp_path / "long.parquet"), tmp_path / "model"
    flags = ["--id-column", "rec", "--label-column", "row_label", "--time-column", "t", "--group-column", "user"]
    status, out, err = mist("fit", path, *flags, "--columns", "a,b", "--out", model, *SMALL, "--piece-length", 30)
    assert status == 0, err
    assert "2 classes: high" in out
    assert "Error near the" in out
    figures = report_of(model)
    assert figures["kind"] == "rows"
    held = set(figures["about"]["held_out"])
    assert figures["count"] == sum(frame.row_label.notna().sum() for name, frame in frames().items() if name in held)

    status, _, err = mist("predict", model, path, "--out", tmp_path / "p.csv")
    assert (status, err) == (0, "")
    table, rows = pd.read_parquet(path), rows_of(tmp_path / "p.csv")
    assert list(rows[0]) == ["id", "row", "t", "label", "probability", "p_high", "p_low"]
    assert [row["id"] for row in rows] == table["rec"].tolist()
    assert [int(row["row"]) for row in rows] == list(range(1, len(table) + 1))
    assert [float(row["t"]) for row in rows] == table["t"].tolist()
    # In the order of time, whatever that of the rows, the model says the same.
    ordered = FrameLabeler.from_pretrained(model)
    one = frames()["001-01-0"]
    (expected,) = ordered.predict([one[["a", "b"]].to_numpy().T])
    mine = sorted((float(row["t"]), row["label"]) for row in rows if row["id"] == "001-01-0")
    assert [label for _, label in mine] == expected.tolist()

    status, out, _ = mist("evaluate", model, path, "--out", tmp_path / "report")
    assert status == 0
    assert "labelled rows of 24 recordings" in out
    assert (tmp_path / "report" / "longest-recording.png").exists()


def test_label_column_of_recordings_may_be_one_label_each(mist: Mist, tmp_path: Path) -> None:
    data = write_folder(tmp_path / "in", columns=("a", "label", "user"))
    (data / "labels.csv").unlink()
    flags = ["--label-column", "label", "--per-recording", "--group-column", "user"]
    status, _, err = mist("fit", data, *flags, "--out", tmp_path / "model", *SMALL)
    assert status == 0, err
    assert isinstance(SequenceClassifier.from_pretrained(tmp_path / "model"), SequenceClassifier)
    status, out, _ = mist("evaluate", tmp_path / "model", data, "--out", tmp_path / "report")
    assert status == 0
    assert "24 recordings: " in out


def test_numbers_are_predicted_with_regress(mist: Mist, tmp_path: Path) -> None:
    data = write_folder(tmp_path / "in", columns=("a", "b"))
    labels = data / "labels.csv"
    pd.DataFrame({"id": list(frames()), "score": [frame.a.mean() for frame in frames().values()]}).to_csv(
        labels, index=False
    )
    flags = ["--labels", labels, "--label-column", "score", "--regress"]
    status, out, err = mist("fit", data, *flags, "--out", tmp_path / "model", *SMALL)
    assert status == 0, err
    assert "mean absolute error" in out
    assert report_of(tmp_path / "model")["kind"] == "numbers"
    moved = labels.rename(tmp_path / "scores.csv")
    assert mist("predict", tmp_path / "model", data, "--out", tmp_path / "p.csv")[0] == 0
    rows = rows_of(tmp_path / "p.csv")
    assert list(rows[0]) == ["id", "predicted"]
    model = SequenceRegressor.from_pretrained(tmp_path / "model")
    expected = model.predict([frames()[row["id"]][["a", "b"]].to_numpy().T for row in rows])
    np.testing.assert_allclose([float(row["predicted"]) for row in rows], expected, rtol=1e-6)
    status, out, _ = mist("evaluate", tmp_path / "model", data, "--labels", moved, "--out", tmp_path / "report")
    assert status == 0
    assert (tmp_path / "report" / "numbers.png").exists()
    status, _, err = mist("evaluate", tmp_path / "model", data, "--out", tmp_path / "other")
    assert status == 2
    assert "expected --labels, because" in err


def test_labels_that_are_whole_numbers_stay_numbers(mist: Mist, tmp_path: Path) -> None:
    data = write_folder(tmp_path / "in", columns=("a",))
    labels = pd.read_csv(data / "labels.csv")  # 01 becomes 1
    labels.to_csv(data / "labels.csv", index=False)
    assert mist("fit", data, "--labels", data / "labels.csv", "--out", tmp_path / "model", *SMALL)[0] == 0
    assert SequenceClassifier.from_pretrained(tmp_path / "model").classes_.tolist() == [1, 2]


def test_defaults_are_those_of_the_estimators() -> None:
    flags = inspect.signature(cli.models.fit).parameters
    own = FrameLabeler()
    for flag, name in [("hidden", "hidden_size"), ("num_layers", "num_layers"), ("batch_size", "batch_size")]:
        assert flags[flag].default == getattr(own, name)
    assert flags["learning_rate"].default == own.learning_rate
    assert (flags["layer"].default, flags["epochs"].default) == (own.layer, own.max_epochs)
    assert own.piece_length == 1000


def test_training_on_all_says_that_there_is_no_figure(mist: Mist, tmp_path: Path) -> None:
    data = write_folder(tmp_path / "in", columns=("a",))
    status, out, _ = mist(
        "fit", data, "--labels", data / "labels.csv", "--test-share", 0, "--out", tmp_path / "m", *SMALL
    )
    assert status == 0
    assert "trained on: all 24 recordings" in out
    assert "there is no honest figure" in out
    assert not (tmp_path / "m" / "report").exists()


def test_inputs_are_standardised_by_the_training_part_alone(mist: Mist, tmp_path: Path) -> None:
    data, model = write_folder(tmp_path / "in", columns=("a", "b")), tmp_path / "model"
    command = ["fit", data, "--labels", data / "labels.csv", "--group-column", "user", "--out", model, *SMALL]
    assert mist(*command)[0] == 0
    trained = pd.concat([frames()[name] for name in report_of(model)["about"]["trained_on"]])[["a", "b"]]
    everything = pd.concat(frames().values())[["a", "b"]]
    stored = SequenceClassifier.from_pretrained(model).network_
    np.testing.assert_allclose(stored.mean.numpy(), trained.mean(), rtol=1e-9)
    np.testing.assert_allclose(stored.scale.numpy(), trained.std(ddof=0), rtol=1e-9)
    assert not np.allclose(stored.mean.numpy(), everything.mean(), rtol=1e-4)
    # A model in its place takes the report away: it would be about another one.
    assert mist(*command, "--force", "--test-share", 0)[0] == 0
    assert not list((model / "report").iterdir())


def test_inputs_that_tell_nothing_or_too_much_are_said(mist: Mist, tmp_path: Path) -> None:
    data = write_folder(tmp_path / "in", columns=("a",))
    for number, path in enumerate(sorted(data.glob("0*.csv"))):
        pd.read_csv(path).assign(still=5, age=number).to_csv(path, index=False)
    _, _, err = mist("fit", data, "--labels", data / "labels.csv", "--out", tmp_path / "m", *SMALL)
    assert "note: always the same in the training part, so nothing can be learnt from it: still." in err
    assert "note: the same throughout each recording: age." in err


def test_classes_that_are_too_rare_to_be_held_out_are_said(mist: Mist, tmp_path: Path) -> None:
    data = write_folder(tmp_path / "in", columns=("a",))
    labels = pd.read_csv(data / "labels.csv", dtype=str)
    labels.loc[0, "label"] = "rare"
    labels.to_csv(data / "labels.csv", index=False)
    status, _, err = mist("fit", data, "--labels", data / "labels.csv", "--out", tmp_path / "m", *SMALL)
    assert status == 0
    assert "note: nothing that was held out is rare: too few recordings have it" in err


def test_classes_of_no_group_that_was_held_out_are_said(mist: Mist, tmp_path: Path) -> None:
    data = write_folder(tmp_path / "in", columns=("a",))
    labels = pd.read_csv(data / "labels.csv", dtype=str)
    labels.loc[(labels["user"] == "001") & (labels["label"] == "01"), "label"] = "own"
    labels.to_csv(data / "labels.csv", index=False)
    flags = ["--labels", data / "labels.csv", "--group-column", "user", "--out", tmp_path / "m"]
    status, _, err = mist("fit", data, *flags, *SMALL)
    assert status == 0
    assert re.search(
        r"note: nothing that was held out is own: no user that was held out has any, so it is not judged", err
    )


def test_one_group_alone_in_the_training_part_is_said(mist: Mist, tmp_path: Path) -> None:
    data = write_folder(tmp_path / "in", columns=("a", "row_label", "user"))
    for path in data.glob("003*"):
        path.unlink()
    (data / "labels.csv").unlink()
    flags = ["--label-column", "row_label", "--group-column", "user"]
    status, _, err = mist("fit", data, *flags, "--out", tmp_path / "m", *SMALL)
    assert status == 0
    assert "note: one user alone is trained on" in err


# What is there already, and what is somebody else's.


def test_nothing_is_overwritten_without_force_and_nothing_foreign_with_it(mist: Mist, tmp_path: Path) -> None:
    data, model = write_folder(tmp_path / "in", columns=("a",)), tmp_path / "model"
    command = ["fit", data, "--labels", data / "labels.csv", "--out", model, *SMALL]
    model.mkdir()
    (model / "mine.txt").write_text("mine")
    status, _, err = mist(*command)
    assert status == 2
    assert "expected a new or an empty folder, got one with files; overwrite a model with --force" in err
    assert mist(*command, "--force")[0] == 0
    before = (model / "model.safetensors").read_bytes()
    assert mist(*command)[0] == 2
    assert (model / "model.safetensors").read_bytes() == before
    assert mist(*command, "--force", "--hidden", 7)[0] == 0
    assert (model / "model.safetensors").read_bytes() != before
    assert (model / "mine.txt").read_text() == "mine"
    for name in ("config.json", "reading.json"):
        kept = (model / name).read_bytes()
        (model / name).write_text('{"of": "somebody else"}')
        status, _, err = mist(*command, "--force")
        assert status == 2
        assert f"{model / name}: not written by `mist fit`, so it is not overwritten" in err
        (model / name).write_bytes(kept)

    (data / "labels.csv").rename(tmp_path / "labels.csv")
    out = tmp_path / "p.csv"
    out.write_text("mine")
    status, _, err = mist("predict", model, data, "--out", out)
    assert status == 2
    assert "there is such a file already; choose another name, or overwrite it with --force" in err
    status, _, err = mist("predict", model, data, "--out", out, "--force")
    assert status == 2
    assert "p.csv: not written by `mist predict`, so it is not overwritten" in err
    assert out.read_text() == "mine"
    out.write_text("id,value\n001,3\n")  # somebody's own numbers
    assert mist("predict", model, data, "--out", out, "--force")[0] == 2
    out.unlink()
    assert mist("predict", model, data, "--out", out)[0] == 0
    assert mist("predict", model, data, "--out", out, "--force")[0] == 0
    for place, what in ((tmp_path, "a folder"), ("/dev/null", "a device or a pipe")):
        status, _, err = mist("predict", model, data, "--out", place, "--force")
        assert status == 2
        assert f"{place}: expected the name of a file to write, got {what}." in err
    status, _, err = mist("predict", model, out, "--out", out, "--force")
    assert status == 2
    assert "p.csv: expected another place for --out, because the recordings are there" in err
    evaluate = ["evaluate", model, data, "--labels", tmp_path / "labels.csv", "--out", tmp_path / "r"]
    assert mist(*evaluate)[0] == 0
    status, _, err = mist(*evaluate)
    assert status == 2
    assert "there is a report.json already" in err
    assert mist(*evaluate, "--force")[0] == 0


def test_a_model_that_cannot_be_saved_leaves_the_earlier_one_and_its_report(
    mist: Mist, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, model = write_folder(tmp_path / "in", columns=("a",)), tmp_path / "model"
    command = ["fit", data, "--labels", data / "labels.csv", "--out", model, *SMALL]
    assert mist(*command)[0] == 0
    before = {path: path.read_bytes() for path in model.rglob("*") if path.is_file()}

    def fail(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(_model_folder, "write_whole", fail)  # the last file of a model
        status, _, err = mist(*command, "--force", "--hidden", 7)
        assert status == 2
        assert f"cannot write {model / 'reading.json'}: No space left on device." in err
        assert {path: path.read_bytes() for path in model.rglob("*") if path.is_file()} == before
        assert mist(*command[:4], "--out", tmp_path / "new", *SMALL)[0] == 2
        assert list((tmp_path / "new").iterdir()) == []


def test_figures_are_told_even_if_the_report_cannot_be_written(
    mist: Mist, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, model = write_folder(tmp_path / "in", columns=("a",)), tmp_path / "model"

    def fail(*_: Any, **__: Any) -> None:
        raise UsageError("cannot write to the folder: No space left on device.")

    monkeypatch.setattr(_own_data, "save_evaluation", fail)
    status, out, err = mist("fit", data, "--labels", data / "labels.csv", "--out", model, *SMALL)
    assert status == 2
    assert re.search(r"recordings: .*% right", out)
    assert f"model: {model}" in out
    assert "No space left on device" in err
    assert {path.name for path in model.iterdir()} == {"config.json", "model.safetensors", "reading.json"}


def test_output_among_the_recordings_is_refused(mist: Mist, tmp_path: Path, fitted: tuple[Path, Path]) -> None:
    model, data = fitted
    for command in (
        ["fit", data, "--labels", data / "labels.csv", "--out", data / "model"],
        ["predict", model, data, "--out", data / "p.csv"],
        ["evaluate", model, data, "--labels", data / "labels.csv", "--out", data],
    ):
        status, _, err = mist(*command)
        assert status == 2
        assert f"outside of {data}, because what is in there is read as recordings" in err


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (["--layer", "mits"], "expected --layer among mist, narx, clockwork, rnn, lstm, gru, got 'mits'."),
        (["--layer", "lstm", "--delays", "3"], "lstm: expected no --delays, because they belong to mist and narx."),
        (["--layer", "clockwork", "--periods", "3", "--hidden", "7"], "7"),
        (["--hidden", "0"], "expected hidden_size to be a whole number from 1 on, got 0."),
        (["--epochs", "0"], "expected max_epochs to be a whole number from 1 on, or None, got 0."),
        (["--class-weight", "heavy"], "expected --class-weight balanced or none, got 'heavy'."),
        (["--piece-length", "10"], "expected no --piece-length, because it is for labels of rows"),
        (["--test-share", "1"], "expected --test-share from 0 to below 1, got 1.0."),
        (["--seed", "-1"], "expected --seed between 0 and 2^31 - 1, got -1."),
        (["--columns", "a,a"], "expected --columns to be names such as ax,ay,az, each once, got 'a,a'."),
        (
            ["--columns", "a,t", "--time-column", "t"],
            "expected --columns without 't', because it is the time column, not an",
        ),
        (["--columns", "a,label"], "expected --columns without 'label', because it is the label column, not an input."),
        (["--columns", "a,zz"], "expected the columns 'zz', which are missing; there are 't', 'b', 'a'."),
        (["--columns", "a", "--group-column", "team"], "expected the columns 'team', which are missing"),
        (["--columns", "a", "--id-column", "rec"], "labels.csv: expected a column 'rec' with the recordings' ids"),
        (["--label-column", "class"], "labels.csv: expected the labels in a column 'class'"),
        ([], "expected to be told whether the column 't' is the time of each row"),
    ],
)
def test_wrong_flags_are_one_message_and_nothing_is_written(
    mist: Mist, tmp_path: Path, fitted: tuple[Path, Path], flags: list[str], expected: str
) -> None:
    _, data = fitted
    status, out, err = mist("fit", data, "--labels", data / "labels.csv", "--out", tmp_path / "model", *flags)
    assert status == 2
    assert err.startswith("mist: ")
    assert expected in err
    assert "Traceback" not in out + err
    assert not (tmp_path / "model").exists()


def test_labels_must_come_from_somewhere(mist: Mist, tmp_path: Path, fitted: tuple[Path, Path]) -> None:
    data = fitted[1]
    assert "expected labels: --labels TABLE" in mist("fit", data, "--out", tmp_path / "m")[2]
    err = mist("fit", data, "--label-column", "a", "--regress", "--out", tmp_path / "m")[2]
    assert "expected --labels, because --regress takes its numbers from a table" in err
    err = mist(
        "fit", data, "--labels", data / "labels.csv", "--regress", "--class-weight", "balanced", "--out", tmp_path / "m"
    )[2]
    assert "expected no --class-weight with --regress" in err


Spoil = Callable[[Path], object]


@pytest.mark.parametrize(
    ("spoil", "expected"),
    [
        (
            lambda place: (place / "001-01-0.csv").write_text("a\n5\n"),
            "expected at least 2 rows in recording '001-01-0'",
        ),
        (lambda place: (place / "001-01-0.csv").write_text("a\n"), "001-01-0.csv: expected rows below the names"),
        (
            lambda place: (place / "001-01-0.csv").write_text("a\n1\nx\n"),
            "001-01-0.csv, line 3, column 'a': expected a number",
        ),
        (lambda place: (place / "extra.csv").write_text("a\n1\n2\n"), "got none for 1 of 25: extra. Add them"),
        (lambda place: _relabel(place, lambda label: "01"), "expected at least 2 classes in the label column 'label'"),
        (lambda place: _relabel(place, lambda label: ""), "expected labels in column 'label', got only empty cells"),
        (
            lambda place: _relabel(place, lambda label: f"{label}.5"),
            "got numbers such as 01.5. Predict numbers with --regress",
        ),
    ],
)
def test_bad_data_is_named_and_nothing_is_written(mist: Mist, tmp_path: Path, spoil: Spoil, expected: str) -> None:
    data = write_folder(tmp_path / "in", columns=("a",))
    spoil(data)
    status, _, err = mist("fit", data, "--labels", data / "labels.csv", "--out", tmp_path / "model", *SMALL)
    assert status == 2
    assert expected in err
    assert not (tmp_path / "model").exists()


def _relabel(place: Path, change: Callable[[str], str]) -> None:
    labels = pd.read_csv(place / "labels.csv", dtype=str)
    labels["label"] = labels["label"].map(change)
    labels.to_csv(place / "labels.csv", index=False)


def test_recordings_with_an_empty_label_are_left_out(mist: Mist, tmp_path: Path) -> None:
    data = write_folder(tmp_path / "in", columns=("a",))
    labels = pd.read_csv(data / "labels.csv", dtype=str)
    labels.loc[:1, "label"] = None
    labels.to_csv(data / "labels.csv", index=False)
    (data / "001-01-0.csv").write_text("a\n5\n")  # too short to be trained on, which it is not
    status, out, err = mist("fit", data, "--labels", data / "labels.csv", "--out", tmp_path / "model", *SMALL)
    assert status == 0
    assert "note: 2 recordings have no label and are left out: 001-01-0, 001-01-1." in err
    assert "22 recordings of" in out


def test_new_data_that_does_not_fit_the_model_is_named(mist: Mist, tmp_path: Path, fitted: tuple[Path, Path]) -> None:
    model, _ = fitted
    new = tmp_path / "new"
    new.mkdir()
    (new / "x.csv").write_text("c,b,a\nhello,1,2\n")  # more columns, in another order
    assert mist("predict", model, new, "--out", tmp_path / "p.csv")[0] == 0
    (new / "x.csv").write_text("a,c\n1,2\n")
    status, _, err = mist("predict", model, new, "--out", tmp_path / "q.csv")
    assert status == 2
    assert "x.csv: expected the columns 'b', which are missing; there are 'a', 'c'." in err
    assert not (tmp_path / "q.csv").exists()
    (new / "x.csv").write_text("a,b\n1,2\n3,4\n")
    (tmp_path / "labels.csv").write_text("id,label\nx,03\n")
    status, _, err = mist("evaluate", model, new, "--labels", tmp_path / "labels.csv", "--out", tmp_path / "r")
    assert status == 2
    assert "labels.csv, line 2: expected the classes that the model knows, '01', '02', got '03' (1 times)." in err
    assert not (tmp_path / "r").exists()
    err = mist("evaluate", model, new, "--out", tmp_path / "r")[2]
    assert "was trained with a table of labels, labels.csv, or --label-column NAME" in err


def test_models_that_cannot_be_read_are_named(mist: Mist, tmp_path: Path, fitted: tuple[Path, Path]) -> None:
    model, data = fitted
    assert (
        "expected the folder of a model, and there is none"
        in mist("predict", tmp_path / "no", data, "--out", "p.csv")[2]
    )
    copy = tmp_path / "copy"
    copy.mkdir()
    for name in ("config.json", "model.safetensors", "reading.json"):
        (copy / name).write_bytes((model / name).read_bytes())
    (copy / "reading.json").write_text('{"format": "mistrnn-reading"')
    assert "reading.json: cannot be read" in mist("predict", copy, data, "--out", "p.csv")[2]
    stored = json.loads((model / "reading.json").read_text())
    (copy / "reading.json").write_text(json.dumps({**stored, "version": 9}))
    assert "expected mistrnn-reading in version 1, got mistrnn-reading in version 9" in mist(
        "predict", copy, data, "--out", "p.csv"
    )[2]  # fmt: skip
    (copy / "reading.json").write_text(json.dumps({**stored, "kind": "rows"}))
    assert "belongs to another model than the config.json beside it" in mist("predict", copy, data, "--out", "p.csv")[2]


def test_model_from_python_is_used_if_its_channels_have_names(mist: Mist, tmp_path: Path) -> None:
    x, y = np.random.default_rng(0).normal(size=(6, 2, 9)), ["up", "down"] * 3
    model = SequenceClassifier(hidden_size=4, max_epochs=1, random_state=0).fit(x, y)
    model.save_pretrained(tmp_path / "unnamed")
    model.channel_names_ = ["p", "q"]
    model.save_pretrained(tmp_path / "named")
    (tmp_path / "one.csv").write_text("q,p\n" + "1,2\n" * 5)
    assert mist("predict", tmp_path / "named", tmp_path / "one.csv", "--out", tmp_path / "p.csv")[0] == 0
    assert rows_of(tmp_path / "p.csv")[0]["id"] == "one"
    err = mist("predict", tmp_path / "unnamed", tmp_path / "one.csv", "--out", tmp_path / "q.csv")[2]
    assert "expected a reading.json or the channels' names in config.json" in err


# Live


def test_model_that_reads_both_ways_is_not_streamed(mist: Mist, tmp_path: Path) -> None:
    x, y = np.random.default_rng(0).normal(size=(6, 2, 9)), ["up", "down"] * 3
    model = SequenceClassifier(hidden_size=4, max_epochs=1, random_state=0, layer_options={"bidirectional": True})
    model.fit(x, y).channel_names_ = ["0", "1"]
    model.save_pretrained(tmp_path / "model")
    status, _, err = mist("stream", tmp_path / "model")
    assert status == 2
    assert "model: cannot be streamed. " in err
    for number in range(4):
        (tmp_path / "in").mkdir(exist_ok=True)
        (tmp_path / "in" / f"{number}.csv").write_text("0,1\n5,6\n7,8\n")
    (tmp_path / "labels.csv").write_text("id,label\n0,up\n1,down\n2,up\n3,down\n")
    status, out, _ = mist(
        "evaluate", tmp_path / "model", tmp_path / "in", "--labels", tmp_path / "labels.csv", "--out", tmp_path / "r"
    )
    assert status == 0
    assert "4 recordings: 50.0% right" in out
    assert "Where in time" not in out  # the second direction starts at the end


def streamed(
    mist: Mist, monkeypatch: pytest.MonkeyPatch, model: Path, text: bytes, *flags: str
) -> tuple[int, str, str]:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text)))
    return mist("stream", model, *flags)


def test_stream_says_what_predict_says(mist: Mist, monkeypatch: pytest.MonkeyPatch, fitted: tuple[Path, Path]) -> None:
    model, data = fitted
    paths = sorted(data.glob("0*.csv"))[:3]
    # cat with an empty line between: each file has its own header, and the state starts afresh.
    text = b"\n".join(path.read_bytes() for path in paths)
    status, out, err = streamed(mist, monkeypatch, model, text)
    assert (status, err) == (0, "")
    header, *pieces = out.replace("label,probability\n", "label,probability\n\n", 1).split("\n\n")
    assert header == "label,probability"
    estimator = SequenceClassifier.from_pretrained(model)
    assert len(pieces) == 3
    for path, piece in zip(paths, pieces, strict=True):
        frame = pd.read_csv(path)
        (expected,) = estimator.predict_proba_at_every_step([frame[["a", "b"]].to_numpy().T])
        said = [line.split(",") for line in piece.split()]
        assert [label for label, _ in said] == [estimator.classes_[k] for k in expected.argmax(-1)]
        np.testing.assert_allclose([float(share) for _, share in said], expected.max(-1), atol=2e-5)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"a,b\n1,2\n3,x\n", "line 3: column 'b': expected a number, got 'x'. Skip such lines with --skip-bad."),
        (b"1,2\n3\n", "line 2: expected 2 cells, got 1: '3'."),
        (b"1,nan\n", "line 1: column 'b': expected a number, got 'nan'."),
        (b"1,1e39\n", "line 1: column 'b': expected a number, got '1e39', which is too large."),
        (b"1,1_0\n", "line 1: column 'b': expected a number, got '1_0'."),
        (b"a,c\n1,2\n", "line 1: expected the columns b, too; there are a, c."),
        (b"x,y\n1,2\n", "line 1: expected the columns a, b, or numbers, got 'x,y'."),
        (b"a,b,a\n", "line 1: expected every column once, got 'a' 2 times."),
        (b"1,2\n\xff,3\n", "line 2: expected text in UTF-8, got the byte 0xff."),
        (b"1,2\n" + b"9" * (2**20 + 5) + b"\n", "line 2: expected a line of at most 1,048,576 bytes."),
    ],
)
def test_stream_stops_at_a_bad_line(
    mist: Mist, monkeypatch: pytest.MonkeyPatch, fitted: tuple[Path, Path], text: bytes, expected: str
) -> None:
    status, _, err = streamed(mist, monkeypatch, fitted[0], text)
    assert status == 2
    assert expected in err


def test_stream_takes_names_that_are_numbers_as_names(
    mist: Mist, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    x, y = np.random.default_rng(0).normal(size=(6, 2, 9)), [1.5, 2.5] * 3
    model = SequenceRegressor(hidden_size=4, max_epochs=1, random_state=0).fit(x, y)
    model.channel_names_ = ["0", "1"]
    model.save_pretrained(tmp_path / "model")
    status, out, _ = streamed(mist, monkeypatch, tmp_path / "model", b"1,0\n5,6\n")
    assert status == 0
    header, value = out.splitlines()
    assert header == "value"
    assert float(value) == pytest.approx(float(model.predict([np.array([[6.0], [5.0]])])[0]), rel=1e-5)


def test_stream_skips_bad_lines_if_told_to(
    mist: Mist, monkeypatch: pytest.MonkeyPatch, fitted: tuple[Path, Path]
) -> None:
    status, out, err = streamed(mist, monkeypatch, fitted[0], b"ready\n1,2\nbad\n1,\n3,4", "--skip-bad")
    lines = out.splitlines()
    assert status == 0
    assert [lines[1], *lines[3:5]] == [",", ",", ","]
    assert (
        err == "note: 3 lines were skipped; the first was line 1: expected the columns a, b, or numbers, got 'ready'.\n"
    )
    clean = streamed(mist, monkeypatch, fitted[0], b"1,2\n3,4\n")[1].splitlines()
    assert [lines[2], lines[5]] == clean[1:]  # the state is as if they had not come


@pytest.mark.parametrize("delimiter", [b";", b"\t"])
def test_stream_reads_the_delimiters_that_tables_have(
    mist: Mist, monkeypatch: pytest.MonkeyPatch, fitted: tuple[Path, Path], delimiter: bytes
) -> None:
    text = b"b,note,a\n2,,1\n4,,3\n\n2,,1\n"
    expected = streamed(mist, monkeypatch, fitted[0], text)
    assert expected[0] == 0
    assert streamed(mist, monkeypatch, fitted[0], text.replace(b",", delimiter)) == expected
    # A bad line at the start says nothing of the lines after it.
    lines = streamed(mist, monkeypatch, fitted[0], b"7|8;x\n" + text.replace(b",", delimiter), "--skip-bad")[1]
    assert lines.splitlines()[2:] == expected[1].splitlines()[1:]


@pytest.mark.parametrize("name", ["stdin", "stdout"])
def test_stream_without_input_or_output_is_one_message(
    monkeypatch: pytest.MonkeyPatch, fitted: tuple[Path, Path], name: str
) -> None:
    monkeypatch.setattr(sys, name, None)
    with pytest.raises(UsageError, match="expected open standard input and output"):
        answer_lines(fitted[0], skip_bad=False)


def test_stream_writes_utf_8_wherever_it_runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    x, y = np.random.default_rng(0).normal(size=(4, 1, 9)), ["läuft", "große"] * 2
    model = SequenceClassifier(hidden_size=4, max_epochs=1, random_state=0).fit(x, y)
    model.channel_names_ = ["x"]
    model.save_pretrained(tmp_path / "model")
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"1\n")))
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding="ascii"))
    assert answer_lines(tmp_path / "model", skip_bad=False) == 0
    assert written.getvalue().decode().splitlines()[1].split(",")[0] in y


def open_stream(model: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "mistrnn", "stream", str(model)]
    pipe = subprocess.PIPE
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, env=environment)


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads the memory of a process as Linux tells it")
def test_stream_answers_each_row_before_the_next_in_constant_time_and_memory_until_ctrl_c(
    fitted: tuple[Path, Path],
) -> None:
    with open_stream(fitted[0]) as process:
        assert process.stdin
        assert process.stdout
        assert process.stdout.readline() == "label,probability\n"
        times, memory = [], []
        for number in range(20_000):
            started = time.perf_counter()
            process.stdin.write(f"{50 + number % 7},{number % 5}\n")
            process.stdin.flush()
            answer = process.stdout.readline()  # would wait for ever if the row were held back
            times.append(time.perf_counter() - started)
            assert answer[:2] in CLASSES
            if number in (1000, 19_999):
                memory.append(_resident(process.pid))
        process.send_signal(signal.SIGINT)  # and Ctrl-C ends it without many words
        assert process.wait(timeout=30) == 130
        assert process.stderr
        assert process.stderr.read() == ""
    first, last = (float(np.median(times[part])) for part in (slice(1000, 2000), slice(-1000, None)))
    assert last < 2 * first
    assert memory[1] - memory[0] < 4 * 2**20


def _resident(process: int) -> int:
    pages = int(Path(f"/proc/{process}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def test_stream_ends_quietly_when_nobody_reads_any_more(fitted: tuple[Path, Path]) -> None:
    with open_stream(fitted[0]) as process:
        assert process.stdin
        assert process.stdout
        assert process.stderr
        process.stdout.readline()
        process.stdout.close()
        with contextlib.suppress(BrokenPipeError):
            for _ in range(100):
                process.stdin.write("1,2\n")
                process.stdin.flush()
                time.sleep(0.01)
        assert process.wait(timeout=30) == 0
        assert process.stderr.read() == ""
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()


def test_ctrl_c_stops_training_and_keeps_the_best_so_far(mist: Mist, tmp_path: Path) -> None:
    data, model = write_folder(tmp_path / "in", columns=("a",)), tmp_path / "model"
    arguments = ["fit", data, "--labels", data / "labels.csv", "--out", model, "--hidden", 6, "--epochs", 1_000_000]
    process = subprocess.Popen(
        [sys.executable, "-m", "mistrnn", *map(str, arguments)], text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"},
    )  # fmt: skip
    with process:
        assert process.stdout
        while not process.stdout.readline().startswith("held out"):
            pass
        time.sleep(2)
        assert not model.exists()  # nothing is written before the end
        process.send_signal(signal.SIGINT)
        out = process.stdout.read()
        assert process.wait(timeout=60) == 130
    assert "stopping after this epoch (once more breaks off at once)" in out
    assert out.splitlines()[-1] == "stopped by Ctrl-C; the model is the best so far."
    assert "Traceback" not in out
    assert report_of(model)["about"]["stopped_by_ctrl_c"] is True
    (data / "labels.csv").unlink()
    assert mist("predict", model, data, "--out", tmp_path / "p.csv")[0] == 0


def test_export_writes_a_graph(mist: Mist, tmp_path: Path, fitted: tuple[Path, Path]) -> None:
    pytest.importorskip("mistrnn.estimators.export")
    pytest.importorskip("onnx")
    path = tmp_path / "model.onnx"
    status, out, err = mist("export", fitted[0], "--onnx", path)
    assert status == 0, err
    assert out == f"{path}\n"
    assert path.stat().st_size > 1000
    assert mist("export", fitted[0], "--onnx", path)[0] == 2
    assert mist("export", fitted[0], "--onnx", path, "--force")[0] == 0
    (tmp_path / "mine.csv").write_text("mine")
    status, _, err = mist("export", fitted[0], "--onnx", tmp_path / "mine.csv", "--force")
    assert status == 2
    assert "mine.csv: expected a name that ends in .onnx, because only such a file is overwritten" in err
    assert (tmp_path / "mine.csv").read_text() == "mine"


def test_missing_packages_are_named(mist: Mist, monkeypatch: pytest.MonkeyPatch, fitted: tuple[Path, Path]) -> None:
    for name in (
        "mistrnn.cli._own_data",
        "mistrnn.cli._labelled",
        "mistrnn.cli._model_folder",
        "mistrnn.tables",
        "mistrnn.tables._read",
    ):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setattr(cli, "_own_data", None, raising=False)
    status, _, err = mist("predict", fitted[0], fitted[1], "--out", "p.csv")
    assert status == 2
    assert "`mist predict` needs pyarrow, which is not installed: pip install 'mistrnn[estimators]'." in err


def test_guide_names_only_flags_that_exist() -> None:
    guide = (Path(__file__).parents[1] / "docs" / "own-data.md").read_text()
    known = set()
    for command in (cli.models.fit, cli.models.predict, cli.models.evaluate, cli.models.stream, cli.models.export):
        known |= {f"--{name.replace('_', '-')}" for name in inspect.signature(command).parameters}
    assert set(re.findall(r"--[a-z][a-z-]+", guide)) - known == {"--help"}
