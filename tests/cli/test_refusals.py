"""What fit, predict and evaluate refuse: files that are not theirs, wrong flags, bad data, broken models."""

import errno
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from mistrnn import SequenceClassifier
from mistrnn.cli import _model_folder, _model_report
from mistrnn.errors import UsageError
from tests.cli.command import Mist
from tests.cli.recordings import SMALL, rows_of, write_folder


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

    monkeypatch.setattr(_model_report, "save_evaluation", fail)
    status, out, err = mist("fit", data, "--labels", data / "labels.csv", "--out", model, *SMALL)
    assert status == 2
    assert re.search(r"recordings: accuracy .*%", out)
    assert f"model: {model}" in out
    assert "No space left on device" in err
    assert {path.name for path in model.iterdir()} == {"config.json", "model.safetensors", "reading.json"}


def test_output_among_the_recordings_is_refused(mist: Mist, tmp_path: Path, fitted: tuple[Path, Path]) -> None:
    model, data = fitted
    for command in (
        ["fit", data, "--labels", data / "labels.csv", "--out", data / "model"],
        ["fit", data, "--labels", data / "labels.csv", "--out", tmp_path / "model", "--tensorboard", data / "tb"],
        ["predict", model, data, "--out", data / "p.csv"],
        ["evaluate", model, data, "--labels", data / "labels.csv", "--out", data],
    ):
        status, _, err = mist(*command)
        assert status == 2
        assert f"outside of {data}, because what is in there is read as recordings" in err
        assert f"Choose another place for {'--tensorboard' if '--tensorboard' in command else '--out'}." in err


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (
            ["--layer", "mits"],
            "expected --layer among mist, narx, clockwork, rnn, lstm, peephole_lstm, gru, got 'mits'.",
        ),
        (["--layer", "lstm", "--delays", "3"], "lstm: expected no --delays, because they belong to mist and narx."),
        (["--layer", "clockwork", "--periods", "3", "--hidden", "7"], "7"),
        (["--hidden", "0"], "expected hidden_size to be a whole number from 1 on, got 0."),
        (["--epochs", "0"], "expected max_epochs to be a whole number from 1 on, or None, got 0."),
        (["--class-weight", "heavy"], "expected --class-weight balanced or none, got 'heavy'."),
        (["--piece-length", "10"], "expected no --piece-length, because it is for labels of rows"),
        (["--patience", "3"], "expected --early-stopping with --patience, which is about it."),
        (["--validation-share", "0.3"], "expected --early-stopping with --validation-share, which is about it."),
        (["--pooling", "median"], "expected pooling to be some of last, mean, max, each once and joined with +"),
        (["--initialization", "groups"], "groups"),
        (["--device", "tpu"], "expected device auto, cpu or cuda, got 'tpu'."),
        (["--test-share", "1"], "expected --test-share from 0 to below 1, got 1.0."),
        (["--seed", "-1"], "expected --seed between 0 and 2^31 - 1, got -1."),
        (["--columns", "a,a"], "names such as ax,ay,az, each once, those with a comma in quotes, got 'a,a'."),
        (
            ["--per-recording"],
            "expected no --per-recording with --labels, because a table has one label for each recording",
        ),
        (["--columns", "a,"], "expected --columns to be names such as ax,ay,az, each once"),
        (["--columns", ""], "expected --columns to be names such as ax,ay,az, each once"),
        (["--columns", 'a,"b'], "those with a comma in quotes, got 'a,\"b'."),
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
    assert "expected no --class-weight, because of --regress: numbers are no classes." in err


def test_pooling_is_not_for_labels_of_rows(mist: Mist, tmp_path: Path, fitted: tuple[Path, Path]) -> None:
    err = mist("fit", fitted[1], "--label-column", "a", "--pooling", "last", "--out", tmp_path / "m")[2]
    assert "expected no --pooling, because each row is labelled" in err


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


def test_a_long_table_whose_id_column_is_not_named_is_told_how(mist: Mist, tmp_path: Path) -> None:
    table = tmp_path / "all.csv"
    table.write_text("rec,a,label\nwalk_1,1,x\nwalk_2,2,y\n")
    status, _, err = mist("fit", table, "--label-column", "label", "--out", tmp_path / "model", *SMALL)
    assert status == 2
    assert "column 'rec': expected a number, got 'walk_1'. Choose the columns to read with --columns." in err
    assert "If one of them names the recording of each row, say so with --id-column." in err


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
    (new / "x.csv").write_text("a,b\n1,2\nhello,4\n")
    err = mist("predict", model, new, "--out", tmp_path / "q.csv")[2]
    assert err.endswith("x.csv, line 3, column 'a': expected a number, got 'hello'.\n")  # its columns cannot be chosen
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
