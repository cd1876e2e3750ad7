"""The `mist` command as a person uses it: what it prints, and its exit status."""

import builtins
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from mistrnn import MIST, __main__, __version__
from mistrnn.analysis import attention
from mistrnn.tasks import make_task
from mistrnn.training import Recorded
from mistrnn.training.group import Group
from tests.cli.command import Mist
from tests.tasks.idx_files import write_mnist
from tests.tasks.recorded_files import (
    write_gesture_phase,
    write_hapt,
    write_mobiact,
    write_standard,
    write_timit_sample,
)

SMALL = [
    "--delay",
    "10",
    "--hidden",
    "6",
    "--delays",
    "3",
    "--batch-size",
    "5",
    "--steps",
    "6",
    "--validate-every",
    "3",
]


def test_sweep_lists_every_trial_and_the_top_tenth(mist: Mist, tmp_path: Path) -> None:
    status, out, _ = mist("sweep", "copy", *SMALL, "--trials", 4, "--out", tmp_path)
    assert status == 0
    rows = [json.loads(line) for line in (tmp_path / "trials.jsonl").read_text().splitlines()]
    assert len(rows) == 4
    for row in rows:
        assert re.search(rf"^{row['trial']} +{row['learning_rate']:.5f} +{row['val_error']:.4f}", out, re.MULTILINE)
    assert out.count("top 10%") == 1
    assert re.search(r"mist 6 on copy: test error rate 0\.\d+, log10 learning rate -?\d.\d+ \(top 1 of 4 trials", out)


def test_same_command_again_only_shows_and_a_changed_one_is_refused(mist: Mist, tmp_path: Path) -> None:
    command = ["sweep", "copy", *SMALL, "--trials", "2", "--out", str(tmp_path)]
    assert mist(*command)[0] == 0
    before = (tmp_path / "trials.jsonl").read_bytes()
    status, out, _ = mist(*command)
    assert status == 0
    assert "step 6 of 6" not in out
    assert (tmp_path / "trials.jsonl").read_bytes() == before
    status, _, err = mist(*command, "--seed", 1)
    assert status == 2
    assert "seed: 0 there, 1 here" in err
    assert (tmp_path / "trials.jsonl").read_bytes() == before
    assert mist(*command, "--seed", 1, "--fresh")[0] == 0
    assert (tmp_path / "trials.jsonl").read_bytes() != before


def test_train_is_a_study_of_one_trial_with_its_learning_rate(mist: Mist, tmp_path: Path) -> None:
    options = ["--optimizer", "adamw", "--schedule", "cosine", "--weight-decay", 0.01, "--truncate", 4, "--layer-norm"]
    status, out, _ = mist("train", "copy", *SMALL, "--learning-rate", 0.02, *options, "--out", tmp_path)
    assert status == 0
    (row,) = [json.loads(line) for line in (tmp_path / "trials.jsonl").read_text().splitlines()]
    assert row["learning_rate"] == 0.02
    settings = json.loads((tmp_path / "study.json").read_text())["settings"]
    assert settings["optimizer"] == "adamw"
    assert settings["layer_options"] == {"delays": 3, "layer_norm": True}
    assert "(top 1 of 1 trials" in out


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (["--engine", "spark"], "expected --engine among embedded, ray, got 'spark'"),
        (["--workers", 2], "--workers belongs to --engine ray"),
        (["--address", "auto"], "--address belongs to --engine ray"),
        (["--node-data"], "--node-data belongs to --engine ray"),
        (["--cpus-per-worker", 2], "--cpus-per-worker belongs to --engine ray"),
        (["--engine", "ray", "--workers", 0], "expected workers >= 1, got 0"),
        (["--engine", "ray", "--address", "127.0.0.1:1"], "no Ray cluster answers at 127.0.0.1:1"),
        (["--early-stop", "median"], "expected early_stop among asha or none, got 'median'"),
    ],
)
def test_flags_of_engines_that_cannot_work_are_refused(
    mist: Mist, tmp_path: Path, flags: list[Any], expected: str
) -> None:
    status, _, err = mist("sweep", "copy", *SMALL, "--out", tmp_path / "study", *flags)
    assert status == 2
    assert expected in err


def test_sweep_with_early_stopping_says_how_many_were_stopped(mist: Mist, tmp_path: Path) -> None:
    flags = ["--trials", 6, "--steps", 32, "--validate-every", 2, "--early-stop", "asha"]
    status, out, _ = mist("sweep", "copy", *SMALL, *flags, "--out", tmp_path)
    assert status == 0
    stopped = [json.loads(line)["status"] for line in (tmp_path / "trials.jsonl").read_text().splitlines()].count(
        "stopped"
    )
    assert stopped
    assert f"{stopped} stopped early)" in out
    assert "stopped at step 2" in out


@pytest.mark.parametrize("command", [["sweep", "copy", "--trials", 2], ["train", "copy", "--learning-rate", 0.02]])
def test_checkpoint_segments_are_a_setting_of_the_study(mist: Mist, tmp_path: Path, command: list[Any]) -> None:
    options = [*command, *SMALL, "--checkpoint-segments", 3]
    assert mist(*options, "--out", tmp_path / "a")[0] == 0
    settings = json.loads((tmp_path / "a" / "study.json").read_text())["settings"]
    assert (settings["checkpoint_segments"], settings["truncate"]) == (3, None)
    status, _, err = mist(*options, "--truncate", 4, "--out", tmp_path / "b")
    assert status == 2
    assert "expected either truncate or checkpoint_segments" in err
    assert not (tmp_path / "b").exists()


def test_permuted_mnist_runs_from_files(mist: Mist, tmp_path: Path) -> None:
    data = write_mnist(tmp_path / "data")
    options = ["--last-pixels", 30, "--layer", "clockwork", "--periods", "1,2,4", "--hidden", 9, "--batch-size", 10]
    command = ["sweep", "pmnist", *options, "--trials", 2, "--steps", 4, "--validate-every", 2, "--out", tmp_path / "s"]
    status, out, err = mist(*command, "--data", data)
    assert (status, err) == (0, "")
    assert "clockwork 9 on pmnist" in out
    assert out.splitlines()[-1] == "The files are not the published MNIST."
    other = write_mnist(tmp_path / "other", seed=1)
    status, _, err = mist(*command, "--data", other)
    assert status == 2
    assert "data: " in err


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (
            ["cpoy"],
            "expected a task among copy, addition, smnist, pmnist, timit, mobiact, surgical, hapt, hapt-frames, got",
        ),
        (["copy", "--layer", "mits"], "expected a layer among mist, narx, clockwork, rnn, lstm, gru, got 'mits'."),
        (["copy", "--delay", "55"], "copy: expected delay to be a positive multiple of 10"),
        (["copy", "--length", "20"], "copy: expected no setting length, because the task's own are: delay."),
        (["addition", "--length", "-2"], "addition: expected length to be a positive even number"),
        (["copy", "--trials", "0"], "expected trials to be a whole number >= 1, got 0."),
        (["copy", "--hidden", "-4"], "expected hidden to be a whole number >= 1, got -4."),
        (["copy", "--steps", "0"], "expected steps to be a whole number >= 1, got 0."),
        (["copy", "--delays", "1,x"], "expected --delays to be a number or a list such as 1,2,4, got '1,x'."),
        (["copy", "--periods", "3"], "mist: expected no periods, because they belong to clockwork."),
        (
            ["copy", "--layer", "lstm", "--delays", "3"],
            "lstm: expected no delays, because they belong to mist and narx.",
        ),
        (["copy", "--seed", "99999999999999999999"], "expected seed to be a whole number between 0 and 2^31 - 1"),
        (["copy", "--device", "mps"], "expected device auto, cpu or cuda, got 'mps'."),
        (["copy", "--device", "cuda:99"], "expected a CUDA device for 'cuda:99', but torch"),
        (["copy", "--delay", "100000000000"], "the data of copy would not fit into memory"),
        (["copy", "--hidden", "1000000"], "a trial of mist with 1000000 units would not fit into memory"),
        (["copy", "--group-size", "0"], "expected group_size >= 1, got 0."),
        (["copy", "--device", "abacus"], "expected device auto, cpu or cuda, got 'abacus'."),
        (["pmnist"], "pmnist: expected a data folder; give it with --data DIR, or get the files with: mist data mnist"),
        (["smnist", "--data", "nowhere"], "missing. Get it with: mist data mnist --dir nowhere"),
    ],
)
def test_bad_input_is_one_message_and_status_two(
    mist: Mist, tmp_path: Path, arguments: list[str], expected: str
) -> None:
    status, out, err = mist("sweep", *arguments, "--out", tmp_path / "study")
    assert status == 2
    assert err.startswith("mist: ")
    assert expected in err
    assert "Traceback" not in out + err
    assert not (tmp_path / "study" / "study.json").exists()


def test_number_that_is_none_and_missing_out_have_status_two(mist: Mist, tmp_path: Path) -> None:
    assert mist("sweep", "copy", "--trials", "many", "--out", tmp_path)[0] == 2
    assert mist("sweep", "copy")[0] == 2


def test_folder_that_cannot_be_written_is_named(mist: Mist, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    status, _, err = mist("sweep", "copy", *SMALL, "--out", tmp_path / "file" / "study")
    assert status == 2
    assert f"cannot write to the folder {tmp_path}/file/study: Not a directory." in err


def test_tasks_layers_and_version_are_listed(mist: Mist) -> None:
    out = mist("tasks")[1]
    for word in ("copy", "addition", "smnist", "pmnist", "--delay", "--length", "--last-pixels", "100,000", "15,000"):
        assert word in out
    out = mist("layers")[1]
    for word in ("mist", "narx", "clockwork", "rnn", "lstm", "gru", "a learned mixture"):
        assert word in out
    assert mist("--version")[1] == f"mistrnn {__version__}\n"


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
        (["paths", "--tau", "5", "--delays", "0,1"], "expected delays to be whole numbers >= 1"),
        (
            ["paths", "--tau", "5", "--delays", "a"],
            "expected --delays to be a number or a list such as 1,2,4, got 'a'.",
        ),
        (["paths", "--tau", "5", "--suggest", "0"], "suggest_delays: expected count to be a whole number >= 1, got 0."),
        (["paths", "--tau", "5", "--csv", "no/such/folder.csv"], "cannot write no/such/folder.csv"),
        (
            ["paths", "--tau", "5", "--delays", "-3"],
            "expected --delays to be a number >= 1 or a list such as 1,2,4, got '-3'.",
        ),
        (["paths", "--tau", "5", "--csv", "."], "cannot write ."),
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


def test_gradients_are_measured_at_the_end_and_divergence_is_said(mist: Mist, tmp_path: Path) -> None:
    options = ["--delay", 10, "--layer", "rnn", "--hidden", 6, "--batch-size", 5, "--steps", 4]
    assert "after 4 steps: at least 1%" in mist("gradients", "copy", *options, "--every", 9, "--out", tmp_path / "a")[1]
    status, out, _ = mist("gradients", "copy", *options, "--learning-rate", 1e38, "--out", tmp_path / "b")
    assert status == 0
    assert "untrained: at least 1%" in out
    assert re.search(
        r"^after 4 steps: the training had diverged at step \d; a lower --learning-rate may help$", out, re.M
    )


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


def test_figure1_is_made(mist: Mist, tmp_path: Path) -> None:
    status, out, _ = mist("reproduce", "figure1", "--out", tmp_path)
    assert status == 0
    assert "NARX RNN with 5 exponential delays (MIST): 3 edges over 21 steps" in out
    assert {path.name for path in tmp_path.iterdir()} == {"figure1.svg", "figure1.png", "figure1.csv"}


def test_table1_shortened_says_so_and_ends_with_a_page(mist: Mist, tmp_path: Path) -> None:
    data = write_mnist(tmp_path / "data", train=150)
    command = [
        "reproduce",
        "table1",
        "--data",
        data,
        "--out",
        tmp_path / "t",
        "--rows",
        "rnn-198",
        "--trials",
        2,
        "--steps",
        1,
    ]
    status, out, err = mist(*command, "--seeds", "0,1")
    assert (status, err) == (0, "")
    row = r"^Simple RNN, 198 units +[\d.]+ ± [\d.]+ +-?\d.\d+ ± [\d.]+ +12.90 ± 0.80 +-2.27 ± 0.10 +not comparable: 2 trials"
    assert re.search(row, out, re.M)
    assert "on files that are not the published ones" in (tmp_path / "t" / "report.html").read_text()
    assert re.search(r"^  Simple RNN, 198 units, seed 1 alone: [\d.]+$", out, re.M)
    assert "Shortened: 2 trials instead of 50 and 1 steps instead of 15,000." in out
    assert out.splitlines()[-1] == f"report: {tmp_path / 't' / 'report.html'}"
    assert "12.90 ± 0.80" in (tmp_path / "t" / "report.html").read_text()
    status, again, _ = mist(*command, "--seeds", "0,1")
    assert "step 1 of 1" not in again
    assert re.findall(r"alone: .*", again) == re.findall(r"alone: .*", out)


def test_recorded_data_is_prepared_and_its_tables_say_what_it_is(mist: Mist, tmp_path: Path) -> None:
    prepared = {name: tmp_path / f"{name}-prepared" for name in ("timit", "sample", "hapt", "mobiact")}
    sample, hapt = write_timit_sample(tmp_path / "sample"), write_hapt(tmp_path / "hapt")
    assert mist("data", "timit", "--from", sample, "--dir", prepared["sample"])[0] == 0
    status, out, _ = mist("data", "hapt", "--from", hapt, "--dir", prepared["hapt"])
    assert (status, out.splitlines()[-1]) == (0, f"{prepared['hapt']}: 60 recordings, 1,080 frames")
    mobiact = write_mobiact(tmp_path / "mobiact")
    assert mist("data", "mobiact", "--from", mobiact, "--dir", prepared["mobiact"])[0] == 0
    shorter = ["--trials", 2, "--steps", 2]
    small = [*shorter, "--rows", "lstm-100"]
    status, _, err = mist("reproduce", "table3", "--data", prepared["sample"], *small, "--out", tmp_path / "x")
    assert status == 2
    assert "expected the prepared recordings of TIMIT, got TIMIT sample (NLTK) (--stand-in)." in err
    table4 = ["reproduce", "table4", "--stand-in", "--data", prepared["hapt"]]
    status, out, err = mist(*table4, *small, "--out", tmp_path / "t4")
    assert (status, err) == (0, "")
    assert "HAPT, standing in for MobiAct: test error of the top 10% by validation" in out
    assert "published" not in out
    assert re.search(r"^LSTM, 100 units +[\d.]+ +-?\d", out, re.M)
    assert "Shortened: 2 trials instead of 50 and 2 steps instead of 2,000." in out
    assert (tmp_path / "t4" / "pictures" / "confusion.csv").exists()
    assert not (tmp_path / "t4" / "pictures" / "over-time.csv").exists()  # one label for each segment
    status, out, _ = mist(
        "reproduce", "table3", "--stand-in", "--data", prepared["sample"], *small, "--out", tmp_path / "t3"
    )
    assert status == 0
    assert "TIMIT sample (NLTK), standing in for TIMIT" in out
    assert (tmp_path / "t3" / "pictures" / "over-time.csv").exists()
    status, _, err = mist("data", "hapt", "--from", hapt, "--dir", prepared["hapt"])
    assert (status, "is there already" in err) == (2, True)


def test_table2_holds_out_every_user_and_says_what_the_data_is(mist: Mist, tmp_path: Path) -> None:
    phase, own = write_gesture_phase(tmp_path / "phase"), write_standard(tmp_path / "MISTIC-SL")
    for source, name in ((phase, "phase"), (own, "mistic")):
        assert mist("data", "surgical", "--from", source, "--dir", tmp_path / f"{name}-prepared")[0] == 0
    small = ["--rows", "lstm", "--steps", 2]
    table2 = ["reproduce", "table2", "--data", tmp_path / "phase-prepared", *small, "--out", tmp_path / "t2"]
    status, _, err = mist(*table2)
    assert status == 2
    assert "the recordings are Gesture Phase Segmentation; --stand-in is for data other than MISTIC-SL" in err
    status, out, err = mist(*table2, "--stand-in")
    assert (status, err) == (0, "")
    assert (
        "Gesture Phase Segmentation, standing in for MISTIC-SL: mean ± deviation over 3 users, each held out once"
        in out
    )
    assert re.search(r"^LSTM, 64 units +[\d.]+ ± [\d.]+ +[\d.]+ ± [\d.]+ *$", out, re.M)
    assert "Shortened: 2 steps instead of 80 epochs." in out
    errors = [json.loads((tmp_path / f"t2/lstm-user-{user}/trials.jsonl").read_text())["test_error"] for user in "abc"]
    assert f"{100 * sum(errors) / 3:.2f} ± {100 * statistics.stdev(errors):.2f}" in out
    whole = ["reproduce", "table2", "--data", tmp_path / "mistic-prepared", *small, "--out", tmp_path / "whole"]
    status, out, _ = mist(*whole)
    assert status == 0
    assert re.search(r"^LSTM, 1024 units .* 13.90 ± 3.00 +not comparable: fewer steps than published", out, re.M)
    status, _, err = mist("reproduce", "table2", "--data", tmp_path / "mistic-prepared", "--rows", "gru")
    assert (status, "expected --rows among rnn, lstm, clockwork, mist, got gru." in err) == (2, True)


def test_figure3_shortened_says_so_and_ends_with_a_page(mist: Mist, tmp_path: Path) -> None:
    shorter = ["--delays", 10, "--rows", "mist,rnn", "--trials", 2, "--steps", 2, "--out", tmp_path]
    status, out, _ = mist("reproduce", "figure3", *shorter)
    assert status == 0
    for row in ("RNN, 203 units, delay 10", "MIST, 141 units, delay 10"):
        assert re.search(
            rf"^{row} +[\d.]+ +0 of 2 +not comparable: the paper does not say \(2 trials instead of 50, 2 ", out, re.M
        )
    assert "Shortened: 2 trials instead of 50 and 2 steps instead of 100,000." in out
    assert (tmp_path / "report.html").exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "copy-10-mist-seed-0",
        "copy-10-rnn-seed-0",
        "report.html",
    ]


def test_report_is_written_about_any_folder_and_names_what_is_broken(mist: Mist, tmp_path: Path) -> None:
    assert mist("sweep", "copy", *SMALL, "--trials", 2, "--out", tmp_path / "all" / "mine")[0] == 0
    (tmp_path / "all" / "broken").mkdir()
    (tmp_path / "all" / "broken" / "study.json").write_text("{")
    status, out, _ = mist("report", tmp_path / "all", tmp_path / "none", "--out", tmp_path / "page.html")
    assert status == 0
    assert f"not shown: {tmp_path}/all/broken/study.json: not readable as JSON" in out
    assert f"not shown: {tmp_path}/none: there is no such folder." in out
    assert "mine: MIST, 6 units, delays 3, on copy" in (tmp_path / "page.html").read_text()
    status, _, err = mist("report", tmp_path / "none", "--out", tmp_path / "other.html")
    assert status == 2
    assert "expected at least one study to report on:" in err
    assert not (tmp_path / "other.html").exists()


def test_study_at_an_address_is_run_and_shown(mist: Mist, tmp_path: Path) -> None:
    address = f"memory://{tmp_path.name}/study"
    status, out, err = mist("sweep", "copy", "--trials", "2", "--out", address, *SMALL)
    assert (status, err) == (0, "")
    assert "(top 1 of 2 trials" in out
    status, out, _ = mist("report", address, "--out", tmp_path / "report.html")
    assert status == 0
    assert "1 study, 2 trials" in (tmp_path / "report.html").read_text()
    status, out, _ = mist("attention", address, "--out", tmp_path / "pictures")
    assert status == 0
    assert "delay     1:" in out
    assert not Path("memory:").exists()


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (
            ["sweep", "copy", "--out", "nowhere://study"],
            "nowhere://study: expected a folder or an address that fsspec knows",
        ),
        (
            ["gradients", "copy", "--out", "memory://a"],
            "expected --out to be a folder on this machine, because pictures",
        ),
    ],
)
def test_address_that_cannot_be_used_is_one_message(mist: Mist, arguments: list[str], expected: str) -> None:
    status, _, err = mist(*arguments)
    assert status == 2
    assert expected in err
    assert err.count("\n") == 1


def test_data_mnist_names_a_wrong_file(mist: Mist, tmp_path: Path) -> None:
    status, _, err = mist("data", "mnist", "--dir", write_mnist(tmp_path))
    assert status == 2
    assert "expected SHA-256 440fcabf73cc…" in err


def test_folder_with_other_things_is_left_alone(mist: Mist, tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    for name in ("film.part", "models/mine.py"):
        (tmp_path / name).write_text("mine")
    for extra in ([], ["--fresh"]):
        status, _, err = mist("sweep", "copy", *SMALL, "--out", tmp_path, *extra)
        assert status == 2
        assert "holds other things than a study (film.part); use a new or an empty folder." in err
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["film.part", "mine.py", "models"]


def test_data_mnist_names_the_mirror_that_fails(mist: Mist, tmp_path: Path) -> None:
    status, _, err = mist("data", "mnist", "--dir", tmp_path, "--mirror", "http://127.0.0.1:9/")
    assert status == 2
    assert "http://127.0.0.1:9/train-images-idx3-ubyte.gz" in err
    assert list(tmp_path.iterdir()) == []


def test_missing_packages_are_named_with_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    importing = builtins.__import__

    def without_typer(name: str, *rest: Any) -> Any:
        if name == "mistrnn.cli":
            raise ModuleNotFoundError("No module named 'typer'", name="typer")
        return importing(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without_typer)
    with pytest.raises(SystemExit, match=r"the command needs typer, .* pip install 'mistrnn\[experiments\]'"):
        __main__.main()


def start(folder: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "mistrnn", "sweep", "copy", *SMALL, "--steps", "100000", "--trials", "2"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        [*command, "--out", str(folder)], env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    deadline = time.monotonic() + 60
    while not (folder / "study.json").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert (folder / "study.json").exists()
    time.sleep(1.0)
    return process


def test_ctrl_c_saves_and_leaves_with_one_line_and_a_second_process_is_refused(mist: Mist, tmp_path: Path) -> None:
    process = start(tmp_path)
    status, _, err = mist("sweep", "copy", *SMALL, "--steps", "100000", "--trials", "2", "--out", tmp_path)
    assert status == 2
    assert f"is in use by another process (process {process.pid})" in err
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    assert out.splitlines()[-1] == f"stopped; saved in {tmp_path}. The same command goes on from here."
    assert "Traceback" not in out
    assert (tmp_path / "checkpoint-000.safetensors").exists()
