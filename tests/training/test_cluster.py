"""Studies on a real Ray cluster of this machine: killed, stopped, resumed, and badly asked for."""

import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from mistrnn.errors import UsageError
from mistrnn.tasks import make_task
from mistrnn.training import run_study, study_task
from mistrnn.training.cluster import RayEngine, connection
from mistrnn.training.cluster.shipping import packed, unpacked
from tests.training.cluster_study import GROUP, STUDY
from tests.training.test_processes import assert_same_study
from tests.training.test_sweep import outcome
from tests.training.together import STUDY as ON_RECORDINGS
from tests.training.together import make_data

if importlib.util.find_spec("ray") is None:
    pytest.skip("Ray is not installed", allow_module_level=True)
ROOT = Path(__file__).parents[2]
OF_OTHERS = (".cache", ".config")
"""What matplotlib keeps in a home folder."""


def on_ray(what: str, folder: Path, home: Path | None = None) -> tuple[int, dict[str, Any]]:
    """Run a script of this folder in a process of its own; return its exit status and what it found."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    if home is not None:
        environment |= {"HOME": str(home), "TMPDIR": str(home)}
    ran = subprocess.run(
        [sys.executable, "-m", "tests.training.cluster_study", what, str(folder)],
        cwd=ROOT, env=environment, capture_output=True, text=True, timeout=180, check=False,
    )  # fmt: skip
    found = [line for line in ran.stdout.splitlines() if line.startswith("{")]
    return ran.returncode, json.loads(found[-1]) if found else {"output": ran.stdout + ran.stderr}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The study as one process computes it."""
    folder = tmp_path_factory.mktemp("undisturbed")
    run_study(STUDY, folder, device="cpu", group_size=GROUP)
    return folder


def test_worker_killed_in_the_middle_changes_no_bit(tmp_path: Path, undisturbed: Path) -> None:
    home = Path(tempfile.mkdtemp(prefix="mist-home-", dir="/tmp"))
    code, found = on_ray("kill", tmp_path / "study", home)
    left = [path.name for path in home.iterdir() if path.name not in OF_OTHERS]
    shutil.rmtree(home)
    assert code == 0, found
    assert left == [], "something was written where the study is not"
    assert len(found["killed"]) == 1
    assert "4 trials in groups of at most 2 on 2 CPU workers" in found["said"]
    assert any("died; trials" in line for line in found["said"])
    assert any(line.startswith("going on with trials") for line in found["said"]), "it went on from a checkpoint"
    assert outcome(tmp_path / "study") == outcome(undisturbed)
    assert found["listeners"]
    assert set(found["listeners"]) <= {"127.0.0.1", "::ffff:127.0.0.1", "::1"}, "other machines can connect"


def test_long_place_for_temporary_files_is_avoided(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / ("long" * 20)
    place.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(place))
    made = Path(connection._new_folder())
    made.rmdir()
    assert made.parent == Path("/tmp")


def test_command_killed_in_the_middle_goes_on_on_the_cluster(tmp_path: Path, undisturbed: Path) -> None:
    code, _ = on_ray("die", tmp_path)
    assert code == -signal.SIGKILL
    code, found = on_ray("on", tmp_path)
    assert code == 0, found
    assert sum(line.startswith("going on with trials") for line in found["said"]) >= 1
    assert outcome(tmp_path) == outcome(undisturbed)


def test_study_stopped_on_the_cluster_goes_on_in_one_process(tmp_path: Path, undisturbed: Path) -> None:
    code, found = on_ray("stop", tmp_path)
    assert code == 0, found
    assert found["stopped"] < STUDY.total_steps
    assert len(list(tmp_path.glob("checkpoint-*"))) == 2
    said: list[str] = []
    run_study(STUDY, tmp_path, device="cpu", say=said.append)
    assert len([line for line in said if line.startswith("going on with trials")]) == 2
    assert outcome(tmp_path) == outcome(undisturbed)
    assert list(tmp_path.glob("checkpoint-*")) == []


def test_ctrl_c_saves_and_leaves_nothing_running(tmp_path: Path) -> None:
    home = Path(tempfile.mkdtemp(prefix="mist-home-", dir="/tmp"))
    flags = "--layer rnn --hidden 8 --trials 2 --steps 100000 --batch-size 5 --delay 10 --engine ray --workers 2"
    running = subprocess.Popen(
        [sys.executable, "-m", "mistrnn", "sweep", "copy", "--out", str(tmp_path / "study"), *flags.split()],
        cwd=ROOT, env={**os.environ, "OMP_NUM_THREADS": "1", "HOME": str(home), "TMPDIR": str(home)},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
    )  # fmt: skip
    assert running.stdout is not None
    lines: list[str] = []
    while not any(line.startswith("step ") for line in lines[-1:]):  # the first line of progress, after 10 s
        lines.append(running.stdout.readline())
        assert lines[-1], lines
    os.killpg(running.pid, signal.SIGINT)  # as a terminal does: to everything that was started from it
    output, _ = running.communicate(timeout=60)
    assert running.returncode == 130, output
    assert "stopped; saved in" in output
    assert len(list((tmp_path / "study").glob("checkpoint-*"))) == 2
    assert [path for path in home.iterdir() if path.name not in OF_OTHERS] == []
    assert not [path for path in Path("/proc").glob("[0-9]*/cmdline") if str(home).encode() in read_or_nothing(path)]
    shutil.rmtree(home)


def read_or_nothing(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:  # it has ended meanwhile
        return b""


def test_node_that_breaks_down_costs_nothing_but_time(tmp_path: Path, undisturbed: Path) -> None:
    code, found = on_ray("node", tmp_path)
    assert code == 0, found
    assert any("died; trials" in line for line in found["said"])
    assert outcome(tmp_path) == outcome(undisturbed)


def test_data_sent_and_data_found_give_the_study_of_one_process(tmp_path: Path) -> None:
    data = make_data(tmp_path)
    code, found = on_ray("data", tmp_path)
    assert code == 0, found
    run_study(ON_RECORDINGS, tmp_path / "alone", data=data, device="cpu")
    for name in ("sent", "there"):
        assert_same_study(tmp_path / name, tmp_path / "alone")


def test_address_without_a_cluster_is_said_in_seconds(tmp_path: Path) -> None:
    code, found = on_ray("address", tmp_path)
    assert code == 0, found
    reasons = {
        "closed": "Connection refused",
        "silent": "silence for 15 s",
        "client": "Connection refused",
        "auto": "",  # that of another test may be running on this machine, and ask for a token that nobody here knows
        "nonsense": "invalid literal",
    }
    for name, reason in reasons.items():
        message, seconds = found[name]
        assert message.startswith("no Ray cluster answers at")
        assert reason in message
        assert seconds < 30


def test_cluster_that_cannot_serve_is_said(tmp_path: Path) -> None:
    make_data(tmp_path)
    code, found = on_ray("clusters", tmp_path)
    assert code == 0, found
    expected = {
        "gpus": "expected GPUs in the cluster for device cuda",
        "cpus": "expected a node with 3 CPUs for a worker, got 2 CPUs",
        "workers": "expected at most 2 workers in this cluster, got 3",
        "no data": "expected prepared recordings, and there is no recordings.json",
        "large": "does not fit into the memory that Ray shares on a node",
        "versions": "versions differ from where the study was started: torch",
        "missing": "workers cannot start: ImportError: no mistrnn on this node",
    }
    for name, message in expected.items():
        assert message in found[name]
    assert "(worker on" in found["no data"]
    assert found["still connected"], "a connection of the caller's is left as it is"


def test_sent_task_is_the_same_and_holds_its_data_once(tmp_path: Path) -> None:
    task = study_task(ON_RECORDINGS, make_data(tmp_path))
    content, arrays = packed(task)
    assert sum(array.nbytes for array in arrays) < 1.1 * sum(
        (tmp_path / "data" / name).stat().st_size for name in ("inputs.npy", "labels.npy")
    )
    assert len(content) < 10_000
    shared = [np.array(array) for array in arrays]
    for array in shared:
        array.flags.writeable = False  # as in Ray's shared memory
    again = unpacked((content, shared))
    index = torch.arange(20).reshape(2, 10)
    for mine, theirs in zip(task.batch("train", index), again.batch("train", index), strict=True):
        assert torch.equal(mine, theirs)
    assert again.data_identity == task.data_identity


def test_made_task_is_sent_like_any_other() -> None:
    task = make_task("copy", {"delay": 10})
    again = unpacked(packed(task))
    assert torch.equal(task.batch("val", torch.arange(5))[1], again.batch("val", torch.arange(5))[1])


@pytest.mark.parametrize(
    ("engine", "device", "expected"),
    [
        (RayEngine(workers=0), "auto", "expected workers >= 1, got 0"),
        (RayEngine(cpus_per_worker=0), "auto", "expected cpus_per_worker >= 1, got 0"),
        (RayEngine(), "cuda:1", "expected device auto, cpu or cuda on a cluster"),
    ],
)
def test_bad_settings_are_refused_before_anything_starts(
    tmp_path: Path, engine: RayEngine, device: str, expected: str
) -> None:
    with pytest.raises(UsageError, match=expected):
        run_study(STUDY, tmp_path / "study", engine=engine, device=device)
    assert not (tmp_path / "study").exists()


def test_missing_ray_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"pip install 'mistrnn\[ray\]'"):
        run_study(STUDY, tmp_path / "study", engine=RayEngine())


def test_ray_imported_before_a_cluster_of_our_own_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", connection)
    monkeypatch.setattr(connection, "_started_here", False)
    with pytest.raises(UsageError, match="Ray was imported before the study could start a cluster"):
        run_study(STUDY, tmp_path / "study", engine=RayEngine())


def test_unwritable_folder_is_said_before_a_cluster_is_started(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot write to the folder"):
        run_study(STUDY, tmp_path / "file" / "study", engine=RayEngine())
