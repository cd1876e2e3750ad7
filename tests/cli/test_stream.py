"""stream as a person uses it: one answer a row, as it comes."""

import contextlib
import io
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from mistrnn import SequenceClassifier, SequenceRegressor
from mistrnn.cli._live import answer_lines
from mistrnn.errors import UsageError
from tests.cli.command import Mist
from tests.cli.recordings import CLASSES


def test_model_that_reads_both_ways_is_not_streamed(mist: Mist, tmp_path: Path) -> None:
    x, y = np.random.default_rng(0).normal(size=(6, 2, 9)), ["up", "down"] * 3
    model = SequenceClassifier(hidden_size=4, max_epochs=1, random_state=0, bidirectional=True)
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
    assert "4 recordings: accuracy 50.0%" in out
    assert "Accuracy by share" not in out  # the second direction starts at the end


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


def test_stream_does_not_skip_the_names_of_other_columns(
    mist: Mist, monkeypatch: pytest.MonkeyPatch, fitted: tuple[Path, Path]
) -> None:
    status, out, err = streamed(mist, monkeypatch, fitted[0], b"x,y\n1,2\n", "--skip-bad")
    assert (status, out) == (2, "label,probability\n")
    assert "line 1: expected the columns a, b, or numbers, got 'x,y'." in err
    status, out, err = streamed(mist, monkeypatch, fitted[0], b"NA,NA\n1,2\n", "--skip-bad")
    assert (status, len(out.splitlines())) == (0, 3)


def test_stream_answers_every_line_where_the_names_are_numbers(
    mist: Mist, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    x, y = np.random.default_rng(0).normal(size=(6, 2, 9)), [1.5, 2.5] * 3
    model = SequenceRegressor(hidden_size=4, max_epochs=1, random_state=0).fit(x, y)
    model.channel_names_ = ["0", "1"]
    model.save_pretrained(tmp_path / "model")
    status, out, err = streamed(mist, monkeypatch, tmp_path / "model", b"1,0\n5,6\n\n0,1\n")
    assert (status, err) == (0, "")
    header, *values = out.splitlines()
    assert header == "value"
    assert values[2] == ""
    expected = model.predict([np.array([[1.0], [0.0]]), np.array([[1.0, 5], [0, 6]]), np.array([[0.0], [1.0]])])
    assert [float(values[k]) for k in (0, 1, 3)] == pytest.approx(expected.tolist(), rel=1e-5, abs=1e-5)
    # What looks like the model's own header may be one.
    _, out, err = streamed(mist, monkeypatch, tmp_path / "model", b"0,1\n0,1\n")
    assert len(out.splitlines()) == 3
    assert err == (
        "note: line 1 is read as a row: the names of the model's columns are numbers, so no line is a header.\n"
    )
    status, _, err = streamed(mist, monkeypatch, tmp_path / "model", b"0,x\n")
    assert status == 2
    assert "line 1: column '1': expected a number, got 'x'." in err


def test_stream_names_every_output_of_several(mist: Mist, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    model = SequenceRegressor(hidden_size=4, max_epochs=1, random_state=0)
    model.fit(random.normal(size=(6, 1, 9)), random.normal(size=(6, 3))).channel_names_ = ["x"]
    model.save_pretrained(tmp_path / "model")
    status, out, _ = streamed(mist, monkeypatch, tmp_path / "model", b"x\n5\nbad\n", "--skip-bad")
    assert status == 0
    header, values, skipped = out.splitlines()
    assert header == "value0,value1,value2"
    expected = model.predict([np.array([[5.0]])])[0]
    assert [float(value) for value in values.split(",")] == pytest.approx(expected.tolist(), rel=1e-5, abs=1e-5)
    assert skipped == ",,"


def test_stream_takes_a_number_that_no_answer_would_come_of_for_a_bad_line(
    mist: Mist, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    x = np.random.default_rng(0).normal(size=(6, 1, 9)) * 1e-10
    model = SequenceClassifier(hidden_size=4, max_epochs=1, random_state=0).fit(x, ["up", "down"] * 3)
    model.channel_names_ = ["a"]
    model.save_pretrained(tmp_path / "model")
    status, _, err = streamed(mist, monkeypatch, tmp_path / "model", b"a\n0\n1e29\n0\n")
    assert (status, "line 3: expected numbers less than 1e+30 deviations from the mean" in err) == (2, True)
    skipped = streamed(mist, monkeypatch, tmp_path / "model", b"a\n0\n1e29\n0\n", "--skip-bad")[1].splitlines()
    without = streamed(mist, monkeypatch, tmp_path / "model", b"a\n0\n0\n")[1].splitlines()
    assert skipped == [*without[:2], ",", without[2]]


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


def test_names_with_commas_are_read_and_chosen(mist: Mist, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    names, data, model = ["a (m/s, cal)", "b (m/s, cal)", "c"], tmp_path / "in", tmp_path / "model"
    data.mkdir()
    random = np.random.default_rng(0)
    for number in range(4):
        pd.DataFrame(random.normal(size=(9, 3)), columns=names).to_csv(data / f"{number}.csv", sep=";", index=False)
    (tmp_path / "labels.csv").write_text("id,label\n0,u\n1,v\n2,u\n3,v\n")
    flags = ["--labels", tmp_path / "labels.csv", "--hidden", 4, "--epochs", 1, "--test-share", 0, "--out", model]
    status, out, err = mist("fit", data, *flags, "--columns", '"a (m/s, cal)", c')
    assert status == 0, err
    assert "inputs: a (m/s, cal), c" in out
    text = (data / "0.csv").read_bytes()
    expected = streamed(mist, monkeypatch, model, text)
    assert (expected[0], expected[2], len(expected[1].splitlines())) == (0, "", 10)
    pd.read_csv(data / "0.csv", sep=";")[["c", "a (m/s, cal)"]].to_csv(tmp_path / "quoted.csv", index=False)
    assert streamed(mist, monkeypatch, model, (tmp_path / "quoted.csv").read_bytes()) == expected


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
