"""The `mist` command as a person uses it for studies: what it prints, and its exit status."""

import builtins
import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import fields
from inspect import signature
from pathlib import Path
from typing import Any

import pytest

from mistrnn import __main__, __version__
from mistrnn.cli._study_flags import EngineFlags, LayerFlags, TrainingFlags, study_from
from mistrnn.cli._task_flags import TaskFlags
from mistrnn.cli.analysis import gradients
from mistrnn.cli.studies import sweep, train
from mistrnn.tasks import TASKS
from mistrnn.training import RayEngine, Study
from mistrnn.training.provenance import code_digest
from tests.cli.command import SMALL, Mist
from tests.tasks.idx_files import write_mnist


def test_sweep_lists_every_trial_and_the_top_tenth(mist: Mist, tmp_path: Path) -> None:
    status, out, _ = mist("sweep", "copy", *SMALL, "--trials", 4, "--out", tmp_path)
    assert status == 0
    rows = [json.loads(line) for line in (tmp_path / "trials.jsonl").read_text().splitlines()]
    assert len(rows) == 4
    for row in rows:
        assert re.search(rf"^{row['trial']} +{row['learning_rate']:.5f} +{row['val_error']:.4f}", out, re.MULTILINE)
    assert out.count("top 10%") == 1
    assert re.search(r"mist 6 on copy: test error rate 0\.\d+, log10 learning rate -?\d.\d+ \(top 1 of 4 trials", out)


def test_sweep_whose_trials_all_diverge_says_so(mist: Mist, tmp_path: Path) -> None:
    status, out, _ = mist("sweep", "copy", *SMALL, "--trials", 2, "--weight-decay", 1e30, "--out", tmp_path)
    assert status == 0
    assert re.search(
        r"^mist 6 on copy: no trial was validated before it diverged \(2 of 2, the first at step \d\); lower learning",
        out,
        re.M,
    )


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


def test_part_of_a_study_runs_now_and_the_rest_by_the_same_command(mist: Mist, tmp_path: Path) -> None:
    command = ["sweep", "copy", *SMALL, "--trials", 4, "--out", tmp_path / "parts"]
    status, out, _ = mist(*command, "--only", "3,1,3")
    assert status == 0
    assert sorted(re.findall(r"^(\d) +\d+\.\d{5} ", out, re.M)) == ["1", "3"]
    assert "2 of 4 trials so far; the same command without --only runs the others." in out
    status, out, _ = mist(*command)
    assert status == 0
    assert "so far" not in out
    mist("sweep", "copy", *SMALL, "--trials", 4, "--out", tmp_path / "whole")
    parts, whole = (
        [json.loads(line) for line in (tmp_path / name / "trials.jsonl").read_text().splitlines()]
        for name in ("parts", "whole")
    )
    assert [row["trial"] for row in parts] == [row["trial"] for row in whole] == [0, 1, 2, 3]
    for mine, row in zip(parts, whole, strict=True):
        assert (mine["learning_rate"], mine["group"], row["group"]) == (row["learning_rate"], 2, 4)
        assert mine["val_error"] == pytest.approx(row["val_error"], abs=0.01)


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
            "expected a task among copy, addition, smnist, pmnist, timit, mobiact, surgical, hapt, hapt-frames, recordings,",
        ),
        (
            ["copy", "--layer", "mits"],
            "expected a layer among mist, narx, clockwork, rnn, lstm, peephole_lstm, gru, got 'mits'.",
        ),
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
        (["copy", "--only", "3,x"], "expected --only to be a number or a list such as 1,2,4, got '3,x'."),
        (["copy", "--trials", "4", "--only", "3,4"], "expected trials between 0 and 3, got [4]."),
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


def test_every_setting_of_every_task_has_its_flag() -> None:
    for task in TASKS.values():
        for setting in task.settings:
            for command in (sweep, train, gradients):
                assert setting in signature(command).parameters
    assert TaskFlags("pmnist", last_pixels=9).settings() == {"last_pixels": 9}


def test_training_flags_are_settings_of_the_study_with_its_defaults() -> None:
    assert {field.name for field in fields(TrainingFlags)} <= {field.name for field in fields(Study)}
    plain = study_from(TaskFlags("copy"), LayerFlags(), TrainingFlags(), trials=50)
    assert plain == Study(task="copy", layer="mist", hidden=139)


def test_engine_flags_are_arguments_of_the_ray_engine_with_its_defaults() -> None:
    assert [field.name for field in fields(EngineFlags)][1:] == [field.name for field in fields(RayEngine)]
    assert EngineFlags("ray").chosen() == RayEngine()


def test_tasks_layers_and_version_are_listed(mist: Mist) -> None:
    out = mist("tasks")[1]
    for word in ("copy", "addition", "smnist", "pmnist", "--delay", "--length", "--last-pixels", "100,000", "15,000"):
        assert word in out
    out = mist("layers")[1]
    for word in ("mist", "narx", "clockwork", "rnn", "lstm", "gru", "a learned mixture"):
        assert word in out
    out = mist("layers", "--cost", "--hidden", 8, "--steps", 5, "--batch-size", 2)[1]
    for word in (
        "The units of LSTM 8",
        "At most its 410 parameters",
        "MIST 8",
        "Clockwork 8",
        "PeepholeLSTM 8",
        "1.00x",
    ):
        assert word in out
    assert mist("--version")[1] == f"mistrnn {__version__}, code {code_digest()}\n"


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


def test_ctrl_c_while_the_command_is_imported_is_no_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    importing = builtins.__import__

    def interrupted(name: str, *rest: Any) -> Any:
        if name == "mistrnn.cli":
            raise KeyboardInterrupt
        return importing(name, *rest)

    monkeypatch.setattr(builtins, "__import__", interrupted)
    with pytest.raises(SystemExit, match=r"^130$"):
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
