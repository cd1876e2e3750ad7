"""The paper's tables and figures as a person runs them, shortened."""

import json
import re
import statistics
from pathlib import Path

from tests.cli.command import Mist
from tests.tasks.idx_files import write_mnist
from tests.tasks.recorded_files import (
    write_gesture_phase,
    write_hapt,
    write_mobiact,
    write_standard,
    write_timit_sample,
)


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
    status, out, _ = mist(*command, "--only", "1")
    assert status == 0
    assert "seed 0 has finished 1 chosen trials of 2" in out
    status, out, err = mist(*command, "--seeds", "0,1")
    assert (status, err) == (0, "")
    row = r"^Simple RNN, 198 units +[\d.]+ +-?\d.\d+ ± [\d.]+ +12.90 ± 0.80 +-2.27 ± 0.10 *$"
    assert re.search(row, out, re.M)
    assert "\n  Simple RNN, 198 units: not comparable: 1 steps instead of 15,000" in out
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
    status, out, err = mist(*table4, *small, "--only", 1, "--out", tmp_path / "t4")
    assert (status, err, (tmp_path / "t4" / "report.html").exists()) == (0, "", True)
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
    assert re.search(r"^LSTM, 1024 units .* 13.90 ± 3.00 *$", out, re.M)
    assert "\n  LSTM, 1024 units: not comparable: fewer steps than published" in out
    status, _, err = mist("reproduce", "table2", "--data", tmp_path / "mistic-prepared", "--rows", "gru")
    assert (status, "expected --rows among rnn, lstm, peephole_lstm, clockwork, mist, got gru." in err) == (2, True)


def test_table2_takes_the_options_of_2016(mist: Mist, tmp_path: Path) -> None:
    phase = write_gesture_phase(tmp_path / "phase")
    assert mist("data", "surgical", "--from", phase, "--dir", tmp_path / "data")[0] == 0
    table2 = [
        "reproduce",
        "table2",
        "--stand-in",
        "--data",
        tmp_path / "data",
        "--rows",
        "lstm",
        "--out",
        tmp_path / "out",
    ]
    options = ["--validation-users", "b", "--forget-bias", 0, "--wrap", "--sweeps", 3]
    status, out, err = mist(*table2, *options)
    assert (status, err) == (0, "")
    assert "mean ± deviation over 2 users, each held out once" in out
    assert sorted(path.name for path in (tmp_path / "out").glob("lstm-*")) == ["lstm-user-a", "lstm-user-c"]
    stored = json.loads((tmp_path / "out" / "lstm-user-c" / "study.json").read_text())
    assert stored["row"] == "table2-options-stand-in/lstm"
    settings = stored["settings"]
    assert (settings["steps"], settings["schedule"], settings["forget_bias"]) == (3, "halving-in-12ths", 0.0)
    assert settings["task_settings"] == {"user": "c", "wrap": True}
    status, _, err = mist(*table2, "--validation-users", "d")
    assert (status, "expected validation users among a, b, c, got d." in err) == (2, True)


def test_beyond_compares_variants_with_the_plain_layer(mist: Mist, tmp_path: Path) -> None:
    run = ["reproduce", "beyond", "--experiment", "copy-100", "--trials", 2, "--steps", 1, "--out", tmp_path]
    wanted = "copy-100-lstm,copy-100-lstm-zoneout"
    status, out, _ = mist(*run, "--rows", wanted)
    assert status == 0
    assert "copy-100: test error of the top 10% by validation" in out
    assert re.search(r"^LSTM 100, zoneout +[\d.]+ +[+-][\d.]+ +0 of 2 ", out, re.M)
    assert "LSTM 100, zoneout: not comparable: too few trials in common" in out
    assert "Shortened: 2 trials instead of 50 and 1 steps instead of 100,000." in out
    stored = json.loads((tmp_path / "copy-100-lstm-zoneout-seed-0" / "study.json").read_text())
    assert (stored["row"], stored["settings"]["layer_options"]) == ("beyond/copy-100-lstm-zoneout", {"zoneout": 0.1})
    assert (tmp_path / "report.html").exists()
    status, _, err = mist(*run[:3], "copy-5", *run[4:])
    assert (status, "expected an experiment among copy-100, copy-1000" in err) == (2, True)


def test_figure3_shortened_says_so_and_ends_with_a_page(mist: Mist, tmp_path: Path) -> None:
    shorter = ["--delays", 10, "--rows", "mist,rnn", "--trials", 2, "--steps", 2, "--out", tmp_path]
    status, out, _ = mist("reproduce", "figure3", *shorter)
    assert status == 0
    for row in ("RNN, 203 units, delay 10", "MIST, 141 units, delay 10"):
        assert re.search(rf"^{row} +[\d.]+ +0 of 2 \[0%, 66%\] +0 of 2 \[0%, 66%\] *$", out, re.M)
        assert f"\n  {row}: not comparable: the paper does not say (2 " in out
    assert "Shortened: 2 trials instead of 50 and 2 steps instead of 100,000." in out
    assert (tmp_path / "report.html").exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "copy-10-mist-seed-0",
        "copy-10-rnn-seed-0",
        "figure3.csv",
        "figure3.png",
        "figure3.svg",
        "report.html",
    ]
    status, out, _ = mist("reproduce", "figure3", "--delays", 20, *shorter[2:])
    assert (status, "figure3.png" in out) == (0, True)
    points = [line.split(",") for line in (tmp_path / "figure3.csv").read_text().splitlines()[1:]]
    assert [point[:3] for point in points] == [  # what the first command has left, too
        ["10", "rnn", "203"], ["10", "mist", "141"], ["20", "rnn", "203"], ["20", "mist", "141"],
    ]  # fmt: skip
