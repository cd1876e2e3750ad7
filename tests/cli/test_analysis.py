"""paths, gradients and attention as a person uses them."""

import re
from pathlib import Path

import pytest
import torch

from mistrnn import MIST
from mistrnn.analysis import attention
from mistrnn.tasks import make_task
from mistrnn.training import Recorded
from mistrnn.training.group import Group
from tests.cli.command import SMALL, Mist
from tests.tasks.recorded_files import (
    write_mobiact,
)


def test_paths_are_shown_and_written(mist: Mist, tmp_path: Path) -> None:
    status, out, _ = mist("paths", "--delays", "1,2,4,8,16", "--tau", 100, "--csv", tmp_path / "paths.csv")
    assert status == 0
    assert "shortest path over 100 steps: 7 edges: t-100 -> t-96 -> t-80" in out
    assert "longest of the shortest paths up to 100 steps: 9 edges, at 95 steps" in out
    rows = (tmp_path / "paths.csv").read_text().splitlines()
    assert rows[0] == "tau,edges,log10_paths,last_delay"
    assert rows[13] == "13,3,2.98046,8"
    assert len(rows) == 101
    assert "all paths over 9 steps: 96\n" in mist("paths", "--delays", "3", "--tau", 9)[1]
    assert "delays: 1, 5, 8" in mist("paths", "--suggest", 3, "--tau", 24)[1]
    assert mist("paths", "--tau", 5, "--csv", tmp_path / "paths.csv")[0] == 0
    (tmp_path / "mine.csv").write_text("a,b\n1,2\n")
    status, _, err = mist("paths", "--tau", 5, "--csv", tmp_path / "mine.csv")
    assert status == 2
    assert "mine.csv: there is a file already that `mist` has not written. Choose another place." in err
    assert (tmp_path / "mine.csv").read_text() == "a,b\n1,2\n"


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (
            ["paths", "--delays", "2,4", "--tau", "7"],
            "expected delays that add up to tau = 7, got [2, 4], which do not.",
        ),
        (["paths", "--tau", "0"], "expected tau to be a whole number >= 1, got 0."),
        (
            ["paths", "--tau", "5", "--delays", "0,1"],
            "expected delays >= 1, because they count steps, got 0 in [0, 1].",
        ),
        (
            ["paths", "--tau", "5", "--delays", "a"],
            "expected --delays to be a number or a list such as 1,2,4, got 'a'.",
        ),
        (["paths", "--tau", "5", "--suggest", "2", "--delays", "3"], "expected --delays or --suggest, not both"),
        (["paths", "--tau", "5", "--suggest", "0"], "suggest_delays: expected count to be a whole number >= 1, got 0."),
        (["paths", "--tau", "5", "--csv", "no/such/folder.csv"], "cannot write no/such/folder.csv"),
        (
            ["paths", "--tau", "5", "--delays", "-3"],
            "expected delays >= 1, got -3.",
        ),
        (["paths", "--tau", "5", "--delays", "100"], "expected delays <= 20 as a count"),
        (["paths", "--tau", "5", "--csv", "."], "cannot write ."),
        (
            ["gradients", "copy", "--by", "units", "--out", "x"],
            "expected --by states or weights, got 'units'.",
        ),
        (
            ["gradients", "copy", "--by", "weights", "--every", "2", "--out", "x"],
            "expected no --every with --by weights, which measures before and after the training.",
        ),
        (
            ["gradients", "copy", "--every", "0", "--out", "x"],
            "expected gradients_every to be a whole number >= 1, got 0.",
        ),
        (["reproduce", "figure1", "--tau", "0"], "expected --tau >= 1, got 0."),
        (["reproduce", "table1", "--data", "nowhere"], "missing. Get it with: mist data mnist --dir nowhere"),
        (
            ["reproduce", "table1", "--data", "x", "--rows", "mist"],
            "expected rows among rnn-198, lstm-100, clockwork-256,",
        ),
        (
            ["reproduce", "table1", "--data", "x", "--seeds", "a"],
            "expected --seeds to be a number or a list such as 1,2,4",
        ),
        (["reproduce", "figure3", "--rows", "gru"], "expected --rows among rnn, lstm, clockwork, mist, got gru."),
        (["reproduce", "figure3", "--delays", "55"], "copy: expected delay to be a positive multiple of 10"),
        (["reproduce", "figure2", "--data", "nowhere"], "missing. Get it with: mist data mnist --dir nowhere"),
        (["attention", "nowhere", "--out", "x"], "nowhere: expected the folder of a study, and there is no study.json"),
        (
            ["gradients", "copy", "--every", "0", "--steps", "0", "--out", "x"],
            "expected steps to be a whole number >= 1",
        ),
    ],
)
def test_bad_input_to_the_analysis_is_one_message(
    mist: Mist, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], expected: str
) -> None:
    monkeypatch.chdir(tmp_path)
    status, out, err = mist(*arguments)
    assert status == 2
    assert expected in err
    assert "Traceback" not in out + err
    assert list(tmp_path.iterdir()) == []


def test_gradients_are_measured_and_drawn(mist: Mist, tmp_path: Path) -> None:
    options = ["--delay", 10, "--layer", "lstm", "--hidden", 6, "--batch-size", 5, "--steps", 4, "--every", 2]
    status, out, _ = mist("gradients", "copy", *options, "--out", tmp_path)
    assert status == 0
    for label in ("untrained", "after 2 steps", "after 4 steps"):
        assert re.search(
            rf"^{label}: at least 1% of the largest gradient norm arrives up to \d+ steps before", out, re.M
        )
    header, *rows = (tmp_path / "pictures" / "gradients.csv").read_text().splitlines()
    assert header == "tau,step_0,step_2,step_4"
    assert len(rows) == 12


def test_gradients_by_weights_are_measured_before_and_after_and_drawn(mist: Mist, tmp_path: Path) -> None:
    options = ["--delay", 10, "--layer", "mist", "--hidden", 6, "--batch-size", 5, "--steps", 4, "--by", "weights"]
    status, out, _ = mist("gradients", "copy", *options, "--out", tmp_path / "a")
    assert status == 0
    for label in ("untrained", "after 4 steps"):
        for gate in ("weight_ih_l0 a", "weight_hh_l0 r", "bias_l0 h"):
            assert f"{label}, {gate}: at least 1% of the largest component up to" in out
    header, *rows = (tmp_path / "a" / "pictures" / "weight-gradients.csv").read_text().splitlines()
    assert header.count("after 4 steps") == 9
    assert len(rows) == 12
    status, out, _ = mist("gradients", "copy", *options, "--learning-rate", 1e38, "--out", tmp_path / "b")
    assert status == 0
    assert "the training diverged; a lower --learning-rate may help" in out
    assert "untrained, bias_l0 h" in out


def test_gradients_are_measured_at_the_end_and_divergence_is_said(mist: Mist, tmp_path: Path) -> None:
    options = ["--delay", 10, "--layer", "rnn", "--hidden", 6, "--batch-size", 5, "--steps", 4]
    assert "after 4 steps: at least 1%" in mist("gradients", "copy", *options, "--every", 9, "--out", tmp_path / "a")[1]
    status, out, _ = mist("gradients", "copy", *options, "--learning-rate", 1e38, "--out", tmp_path / "b")
    assert status == 0
    assert "untrained: at least 1%" in out
    assert re.search(
        r"^after 4 steps: the training had diverged at step \d; a lower --learning-rate may help$", out, re.M
    )
    options = ["--length", 10, "--layer", "rnn", "--hidden", 6, "--batch-size", 5, "--steps", 5, "--every", 1]
    status, out, err = mist("gradients", "addition", *options, "--learning-rate", 1e25, "--out", tmp_path / "c")
    assert (status, err) == (0, "")
    assert "the gradients overflow; a lower --learning-rate may help" in out


def test_a_crash_while_gradients_are_measured_is_said(
    mist: Mist, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(self: Group) -> bool:
        raise RuntimeError("a kernel failed")

    monkeypatch.setattr(Group, "advance", broken)
    status, _, err = mist("gradients", "copy", "--delay", 10, "--hidden", 6, "--steps", 4, "--out", tmp_path)
    assert (status, err) == (2, "mist: the training crashed: RuntimeError: a kernel failed\n")


def test_attention_of_a_study_is_drawn(mist: Mist, tmp_path: Path) -> None:
    study = tmp_path / "study"
    assert mist("sweep", "copy", *SMALL, "--trials", 2, "--gradients-every", 3, "--out", study)[0] == 0
    assert (study / "gradients.safetensors").exists()
    status, out, _ = mist("attention", study, "--out", tmp_path / "pictures", "--examples", 7)
    assert status == 0
    shares = [float(share) for share in re.findall(r"^delay +\d+: +([\d.]+)%$", out, re.M)]
    assert len(shares) == 3
    assert sum(shares) == pytest.approx(100, abs=0.3)
    assert (tmp_path / "pictures" / "attention.png").exists()
    status, _, err = mist("attention", study, "--out", tmp_path / "pictures", "--trial", 5)
    assert status == 2
    assert "there is no model of trial 5" in err
    simple = [*SMALL[:4], *SMALL[6:], "--layer", "rnn", "--learning-rate", 0.1]
    assert mist("train", "copy", *simple, "--out", tmp_path / "rnn")[0] == 0
    status, _, err = mist("attention", tmp_path / "rnn", "--out", tmp_path / "pictures")
    assert (status, err) == (2, "mist: expected a study of a MIST layer, because others have no mixture, got rnn.\n")


def test_attention_is_that_of_each_sequence_without_its_padding(mist: Mist, tmp_path: Path) -> None:
    data, study = tmp_path / "prepared", tmp_path / "study"
    assert mist("data", "mobiact", "--from", write_mobiact(tmp_path / "mobiact"), "--dir", data)[0] == 0
    small = ["--data", data, "--hidden", 6, "--delays", 3, "--batch-size", 5, "--steps", 2, "--validate-every", 2]
    assert mist("train", "mobiact", *small, "--learning-rate", 0.1, "--out", study)[0] == 0
    status, out, _ = mist("attention", study, "--data", data, "--out", tmp_path / "pictures", "--examples", 9)
    assert status == 0
    task, recorded = make_task("mobiact", data=data), Recorded(str(study))
    layer = recorded.model(recorded.best_trial(), task).eval().layer
    assert isinstance(layer, MIST)
    lengths = task.lengths("test", torch.arange(9)).tolist()
    inputs = [task.batch("test", torch.tensor([k]))[0][:length] for k, length in enumerate(lengths)]
    assert len(set(lengths)) > 1
    alone = [attention(layer, one)[-1, :, 0] for one in inputs]  # [T, D] each
    for delay, share in zip(layer.delays, torch.cat(alone).mean(0).tolist(), strict=True):
        assert f"delay {delay:>5}: {share:6.1%}\n" in out
    _, *rows = (tmp_path / "pictures" / "attention.csv").read_text().splitlines()
    assert len(rows) == max(lengths) < len(task.batch("test", torch.arange(9))[0])  # batches are padded further
    for step, row in enumerate(rows):
        mean = torch.stack([one[step] for one in alone if step < len(one)]).mean(0)
        assert [float(value) for value in row.split(",")[1:4]] == pytest.approx(mean.tolist(), rel=1e-5)
