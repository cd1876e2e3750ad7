"""fit, predict, evaluate and export as a person uses them, on small files of their own."""

import inspect
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from mistrnn import FrameLabeler, SequenceClassifier, SequenceRegressor, cli
from mistrnn.cli import _fit
from mistrnn.cli._estimator import estimator_from
from mistrnn.cli._model_folder import ESTIMATORS
from mistrnn.estimators import SequenceEstimator
from tests.cli.command import Mist
from tests.cli.recordings import SMALL, USERS, frames, report_of, rows_of, write_folder, write_long


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
    assert "24 recordings: accuracy 100.0%" in out
    assert json.loads((tmp_path / "report" / "report.json").read_text())["accuracy"] == 1.0


def test_table_of_labels_in_a_sub_folder_is_no_recording(mist: Mist, tmp_path: Path) -> None:
    data, model = write_folder(tmp_path / "in", columns=("a",)), tmp_path / "model"
    (data / "about").mkdir()
    labels = (data / "labels.csv").rename(data / "about" / "labels.csv")
    assert mist("fit", data, "--labels", labels, "--out", model, *SMALL)[0] == 0
    status, _, err = mist("predict", model, data, "--out", tmp_path / "p.csv")
    assert (status, err) == (0, "")
    assert [row["id"] for row in rows_of(tmp_path / "p.csv")] == sorted(frames())
    # A model that was saved with the name alone finds the table beside the recordings.
    kept = json.loads((model / "reading.json").read_text())
    assert kept["labels"] == "about/labels.csv"
    (model / "reading.json").write_text(json.dumps({**kept, "labels": "labels.csv"}))
    labels.rename(data / "labels.csv")
    assert mist("predict", model, data, "--out", tmp_path / "q.csv")[0] == 0


def test_long_table_with_row_labels_keeps_the_order_of_its_rows(mist: Mist, tmp_path: Path) -> None:
    path, model = write_long(tmp_path / "long.parquet"), tmp_path / "model"
    flags = ["--id-column", "rec", "--label-column", "row_label", "--time-column", "t", "--group-column", "user"]
    status, out, err = mist("fit", path, *flags, "--columns", "a,b", "--out", model, *SMALL, "--piece-length", 30)
    assert status == 0, err
    assert "2 classes: high" in out
    assert "Error rate near the" in out
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


@pytest.mark.parametrize("command", ["fit", "tune"])
@pytest.mark.parametrize("kind", ["rows", "recordings", "numbers"])
def test_flags_left_out_are_the_defaults_of_the_estimators(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, command: str, kind: Any
) -> None:
    made: list[SequenceEstimator] = []
    monkeypatch.setattr(_fit, "estimator_from", lambda *given: made.append(estimator_from(*given)) or sys.exit(0))
    flags = {
        "rows": ["--label-column", "x"],
        "recordings": ["--labels", "x"],
        "numbers": ["--labels", "x", "--regress"],
    }
    monkeypatch.setattr(sys, "argv", ["mist", command, str(tmp_path), "--out", "model", *flags[kind]])
    with pytest.raises(SystemExit):
        cli.run()
    expected = {"random_state": 0, "verbose": True} | ({"n_trials": 16} if command == "tune" else {})
    (own,) = made
    assert own.get_params() == {**ESTIMATORS[kind]().get_params(), **expected}


def test_every_flag_of_the_estimator_reaches_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    made: list[SequenceEstimator] = []
    monkeypatch.setattr(_fit, "estimator_from", lambda *given: made.append(estimator_from(*given)) or sys.exit(0))
    values = {
        "layer": ("layer", "narx"), "hidden": ("hidden_size", 5), "num-layers": ("num_layers", 3),
        "pooling": ("pooling", "last"), "kernel-size": ("kernel_size", 4), "initialization": ("initialization", "normal"),
        "epochs": ("max_epochs", 9),
        "batch-size": ("batch_size", 7), "learning-rate": ("learning_rate", 0.5), "weight-decay": ("weight_decay", 0.3),
        "dropout": ("dropout", 0.2), "label-smoothing": ("label_smoothing", 0.25), "seed": ("random_state", 3),
        "validation-share": ("validation_fraction", 0.4), "patience": ("patience", 6),
        "class-weight": ("class_weight", "balanced"),
    }  # fmt: skip
    given = [str(word) for flag, (_, value) in values.items() for word in (f"--{flag}", value)]
    switches = ["--bidirectional", "--early-stopping", "--no-augmentation", "--delays", "1,3"]
    argv = ["mist", "fit", str(tmp_path), "--labels", "x", "--out", "model", *given, *switches]
    monkeypatch.setattr(sys, "argv", argv)
    with pytest.raises(SystemExit):
        cli.run()
    found = made[0].get_params()
    assert {name: found[name] for name, _ in values.values()} == dict(values.values())
    assert (found["bidirectional"], found["early_stopping"], found["augmentation"]) == (True, True, False)
    assert found["layer_options"] == {"delays": [1, 3]}


def test_help_groups_the_flags_and_shows_the_estimators_defaults(mist: Mist, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    status, out, _ = mist("fit", "--help")
    assert status == 0
    for panel in ("Recordings", "Network", "Training", "Early stopping", "Where to compute"):
        assert f"─ {panel} ─" in out
    assert re.search(rf"--hidden .*units of each recurrent layer. \[default: {FrameLabeler.hidden_size}\]", out)
    assert "[default: automatic]" in out
    assert "--trials" not in out


def test_training_on_all_says_that_there_is_no_figure(mist: Mist, tmp_path: Path) -> None:
    data = write_folder(tmp_path / "in", columns=("a",))
    status, out, _ = mist(
        "fit", data, "--labels", data / "labels.csv", "--test-share", 0, "--out", tmp_path / "m", *SMALL
    )
    assert status == 0
    assert "trained on: all 24 recordings" in out
    assert "Nothing was held out (--test-share 0), so there is no report" in out
    assert not (tmp_path / "m" / "report").exists()


def test_inputs_are_standardised_by_the_training_part_alone(mist: Mist, tmp_path: Path) -> None:
    data, model = write_folder(tmp_path / "in", columns=("a", "b")), tmp_path / "model"
    command = ["fit", data, "--labels", data / "labels.csv", "--group-column", "user", "--out", model, *SMALL]
    assert mist(*command)[0] == 0
    trained = pd.concat([frames()[name] for name in report_of(model)["about"]["trained_on"]])[["a", "b"]]
    everything = pd.concat(frames().values())[["a", "b"]]
    stored = SequenceClassifier.from_pretrained(model).network_.standardisation
    np.testing.assert_allclose(stored.mean.numpy(), trained.mean(), rtol=1e-9)
    np.testing.assert_allclose(stored.scale.numpy(), trained.std(ddof=0), rtol=1e-9)
    assert not np.allclose(stored.mean.numpy(), everything.mean(), rtol=1e-4)
    # A model in its place takes the report away: it would be about another one.
    assert mist(*command, "--force", "--test-share", 0)[0] == 0
    assert not list((model / "report").iterdir())


def test_inputs_that_tell_nothing_or_too_much_are_said(mist: Mist, tmp_path: Path) -> None:
    data = write_folder(tmp_path / "in", columns=("a",))
    for number, path in enumerate(sorted(data.glob("0*.csv"))):
        table = pd.read_csv(path)
        table.assign(still=5, age=number, sample=range(len(table))).to_csv(path, index=False)
    _, _, err = mist("fit", data, "--labels", data / "labels.csv", "--out", tmp_path / "m", *SMALL)
    assert "note: constant in the training set, so nothing can be learnt from it: still." in err
    assert "note: constant within each recording: age." in err
    assert "note: rises from row to row in every recording, as a clock or a row number does: sample." in err
    assert "leave it out with --time-column, or choose the others with --columns." in err


def test_classes_that_are_too_rare_to_be_held_out_are_said(mist: Mist, tmp_path: Path) -> None:
    data = write_folder(tmp_path / "in", columns=("a",))
    labels = pd.read_csv(data / "labels.csv", dtype=str)
    labels.loc[0, "label"] = "rare"
    labels.to_csv(data / "labels.csv", index=False)
    status, _, err = mist("fit", data, "--labels", data / "labels.csv", "--out", tmp_path / "m", *SMALL)
    assert status == 0
    assert "note: classes that are not evaluated, because too few recordings have them: rare." in err


def test_classes_of_no_group_that_was_held_out_are_said(mist: Mist, tmp_path: Path) -> None:
    data = write_folder(tmp_path / "in", columns=("a",))
    labels = pd.read_csv(data / "labels.csv", dtype=str)
    labels.loc[(labels["user"] == "001") & (labels["label"] == "01"), "label"] = "own"
    labels.to_csv(data / "labels.csv", index=False)
    flags = ["--labels", data / "labels.csv", "--group-column", "user", "--out", tmp_path / "m"]
    status, _, err = mist("fit", data, *flags, *SMALL)
    assert status == 0
    assert "note: classes that are not evaluated, because no held-out user has them: own." in err


def test_one_group_alone_in_the_training_part_is_said(mist: Mist, tmp_path: Path) -> None:
    data = write_folder(tmp_path / "in", columns=("a", "row_label", "user"))
    for path in data.glob("003*"):
        path.unlink()
    (data / "labels.csv").unlink()
    flags = ["--label-column", "row_label", "--group-column", "user"]
    status, _, err = mist("fit", data, *flags, "--out", tmp_path / "m", *SMALL)
    assert (status, "single user" in err) == (0, False)  # nothing is held out for validation
    status, out, err = mist("fit", data, *flags, "--out", tmp_path / "n", *SMALL, "--early-stopping")
    assert status == 0
    assert "note: the training set has a single user, so the validation set has recordings of the same." in err
    assert re.search(r"trained 4 epochs in \d+ s, kept epoch [1-4]; [\d,]+ parameters", out)


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
    guide = (Path(__file__).parents[2] / "docs" / "how-to" / "own-data.md").read_text()
    known = set()
    for command in (
        cli.models.fit,
        cli.models.tune,
        cli.models.predict,
        cli.models.evaluate,
        cli.models.stream,
        cli.models.export,
    ):
        known |= {f"--{name.replace('_', '-')}" for name in inspect.signature(command).parameters}
    assert set(re.findall(r"--[a-z][a-z-]+", guide)) - known == {"--help"}


def test_guide_to_the_estimators_has_their_defaults() -> None:
    guide = (Path(__file__).parents[2] / "docs" / "how-to" / "estimators.md").read_text()
    written = dict(re.findall(r"^\| `(\w+)` \| (\S+) \|", guide, re.MULTILINE))
    known = {name: value for kind in ESTIMATORS.values() for name, value in kind().get_params().items()}
    assert len(written) > 20
    for name, text in written.items():
        assert text.strip("`").replace('"', "'") == repr(known[name]), name
    search = {"n_trials", "n_best", "search_dir", "engine", "callback"}
    assert set(known) - set(written) == search | {"unlabeled"}
    assert all(f"`{name}" in guide for name in search)
