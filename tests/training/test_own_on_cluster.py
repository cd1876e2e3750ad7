"""What people bring of their own on a real Ray: a search, and a study of a task that only their script knows."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from mistrnn.training.tuning import Follow
from tests.training.small_search import run
from tests.training.test_processes import assert_same_study

pytest.importorskip("ray")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("cluster")
    ran = subprocess.run(
        [sys.executable, "-m", "tests.training.own_on_cluster", str(place)],
        cwd=Path(__file__).parents[2], env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True, text=True, timeout=180, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return place


def test_search_on_a_cluster_is_the_search_of_one_process(tmp_path: Path, folder: Path) -> None:
    found = run(folder / "search", follow=Follow(report=lambda *_: pytest.fail("a step was taken")))
    expected = run(tmp_path)
    for name in ("trial", "status", "steps", "chosen"):
        assert [row[name] for row in found.trials] == [row[name] for row in expected.trials]
    for mine, own in zip(found.networks, expected.networks, strict=True):
        for name, value in own.state_dict().items():
            torch.testing.assert_close(mine.state_dict()[name], value, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("where", ["sent", "made"])
def test_registered_task_on_a_cluster_gives_the_study_of_one_process(folder: Path, where: str) -> None:
    assert_same_study(folder / where, folder / "alone")
