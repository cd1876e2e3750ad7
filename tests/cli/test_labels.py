"""Labels of fit and evaluate as tables of other programs write them."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from mistrnn import FrameLabeler, SequenceClassifier
from tests.cli.command import Mist
from tests.cli.recordings import SMALL, frames, rows_of, write_folder


def test_whole_numbers_with_a_gap_are_the_classes_of_those_without(mist: Mist, tmp_path: Path) -> None:
    data, model = write_folder(tmp_path / "in", columns=("a",)), tmp_path / "model"
    whole = pd.read_csv(data / "labels.csv")  # 01 becomes 1
    whole.to_csv(tmp_path / "whole.csv", index=False)
    whole.assign(label=whole["label"].where(whole.index > 0)).to_csv(data / "labels.csv", index=False)
    assert ",1.0," in (data / "labels.csv").read_text()
    status, out, err = mist("fit", data, "--labels", data / "labels.csv", "--out", model, *SMALL)
    assert status == 0, err
    assert "2 classes: 1 11, 2 12" in out
    assert SequenceClassifier.from_pretrained(model).classes_.tolist() == [1, 2]
    (data / "labels.csv").unlink()
    assert mist("evaluate", model, data, "--labels", tmp_path / "whole.csv", "--out", tmp_path / "report")[0] == 0


@pytest.mark.parametrize(
    ("classes", "text"), [([1.0, 2.0], "1\n2\n"), ([1, 2], "1.0\n2.0\n\n"), (["1.0", "1.1"], "1.0\n1.0\n")]
)
def test_known_classes_are_found_however_whole_numbers_are_written(
    mist: Mist, tmp_path: Path, classes: list[object], text: str
) -> None:
    x = np.random.default_rng(0).normal(size=(20, 1, 8))
    model = FrameLabeler(hidden_size=4, max_epochs=1).fit(x, np.where(x[:, 0] > 0, *classes))
    model.channel_names_ = ["a"]
    model.save_pretrained(tmp_path / "model")
    (tmp_path / "new.csv").write_text("a,label\n" + "".join(f"0.5,{word}\n" for word in text.splitlines()))
    status, out, err = mist("evaluate", tmp_path / "model", tmp_path / "new.csv", "--out", tmp_path / "report")
    assert status == 0, err
    assert "2 labelled rows of 1 recordings" in out
    (tmp_path / "new.csv").write_text("a,label\n0.5,3.0\n0.5,1\n")
    status, _, err = mist("evaluate", tmp_path / "model", tmp_path / "new.csv", "--out", tmp_path / "other")
    assert status == 2
    assert "line 2: expected the classes that the model knows, " in err


def test_words_for_nothing_are_classes_with_a_notice(mist: Mist, tmp_path: Path) -> None:
    data = write_folder(tmp_path / "in", columns=("a", "row_label"))
    labels = pd.read_csv(data / "labels.csv", dtype=str)
    labels.loc[labels["label"] == "02", "label"] = "NA"
    labels.to_csv(tmp_path / "labels.csv", index=False)
    (data / "labels.csv").unlink()
    flags = ["--labels", tmp_path / "labels.csv", "--columns", "a"]
    status, out, err = mist("fit", data, *flags, "--out", tmp_path / "m", *SMALL)
    assert status == 0
    assert "2 classes: 01 12, NA 12" in out
    advice = "leave the cell empty if it means that there is no label."
    assert f"note: 'NA' is learnt as a class (12 recordings); {advice}" in err
    _, _, err = mist("evaluate", tmp_path / "m", data, *flags[:2], "--out", tmp_path / "report")
    assert err == ""  # the model has learnt it
    (count,) = pd.concat([pd.read_csv(path) for path in data.iterdir()])["row_label"].isna().to_frame().sum()
    for path in data.iterdir():
        pd.read_csv(path).to_csv(path, index=False, na_rep="nan")
    _, _, err = mist("fit", data, "--label-column", "row_label", "--out", tmp_path / "n", *SMALL)
    assert f"note: 'nan' is learnt as a class ({count} rows); {advice}" in err


def test_recording_that_is_called_as_labels_elsewhere_is_read(mist: Mist, tmp_path: Path) -> None:
    data, model = write_folder(tmp_path / "in", columns=("a",)), tmp_path / "model"
    labels = (data / "labels.csv").rename(tmp_path / "001-01-0.csv")
    status, _, err = mist("fit", data, "--labels", labels, "--out", model, *SMALL)
    assert status == 0, err
    assert mist("predict", model, data, "--out", tmp_path / "p.csv")[0] == 0
    assert [row["id"] for row in rows_of(tmp_path / "p.csv")] == sorted(frames())
    status, _, err = mist("evaluate", model, data, "--out", tmp_path / "report")
    assert status == 2
    assert "was trained with a table of labels, 001-01-0.csv, or --label-column NAME" in err


def test_evaluation_skips_the_labels_that_lay_among_the_recordings(mist: Mist, tmp_path: Path) -> None:
    data, model = write_folder(tmp_path / "in", columns=("a",)), tmp_path / "model"
    assert mist("fit", data, "--labels", data / "labels.csv", "--out", model, *SMALL)[0] == 0
    other = tmp_path / "other.csv"
    other.write_bytes((data / "labels.csv").read_bytes())
    status, out, err = mist("evaluate", model, data, "--labels", other, "--out", tmp_path / "report")
    assert (status, err) == (0, "")
    assert "24 recordings: " in out
