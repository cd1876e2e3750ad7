"""Labels of fit and evaluate as tables of other programs write them."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from mistrnn import FrameLabeler, SequenceClassifier
from tests.cli.command import Mist
from tests.cli.recordings import SMALL, write_folder


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
