"""Tasks of one's own by their names: registered in the process, or found in an installed package."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mistrnn.errors import UsageError
from mistrnn.tasks import TASKS, Task, find_installed_tasks, make_task, register_task, task_class
from tests.tasks.own_recordings import OwnRecordings
from tests.tasks.own_regression import Sums


@pytest.fixture(autouse=True)
def only_built_in_tasks() -> Iterator[None]:
    before = dict(TASKS)
    yield
    TASKS.clear()
    TASKS.update(before)


def test_registered_task_is_made_by_its_name_and_settings() -> None:
    assert register_task(Sums) is Sums
    assert task_class("sums") is Sums
    register_task(OwnRecordings)
    assert sum(make_task("own-recordings", {"count": 30}).sizes.values()) == 30
    with pytest.raises(UsageError, match="own-recordings: expected no setting size, because the task's own are: count"):
        make_task("own-recordings", {"size": 3})


def test_class_that_is_defined_again_takes_the_place_of_the_one_before() -> None:
    def defined() -> type[Task]:
        class Again(Sums):
            name = "again"

        return Again

    register_task(defined())
    newest = register_task(defined())
    assert task_class("again") is newest


def test_name_that_is_taken_is_refused() -> None:
    class Mine(Sums):
        name = "copy"

    with pytest.raises(UsageError, match=r"^Mine: expected a name of its own, got 'copy', which is taken by mistrnn\."):
        register_task(Mine)


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ({"name": ""}, r"expected the class attribute name \(str\), which every task has, got ''"),
        ({"every_step": None}, r"expected the class attribute every_step \(bool\), which every task has, got none"),
        ({"default_steps": "many"}, r"expected the class attribute default_steps \(int\), .*, got 'many'"),
    ],
)
def test_task_without_its_attributes_is_refused(attributes: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=f"^Mine: {message}"):
        register_task(type("Mine", (Sums,), attributes))
    assert "" not in TASKS


def test_what_is_no_task_is_refused() -> None:
    with pytest.raises(TypeError, match="register_task: expected a class derived from Task, got <class 'dict'>"):
        register_task(dict)  # type: ignore[type-var]
    with pytest.raises(TypeError, match="register_task: expected a class derived from Task, got "):
        register_task(Sums())  # type: ignore[type-var]

    class Half(Task):
        name = "half"

    with pytest.raises(
        TypeError, match="Half: expected a task with all its methods, and there is no batch, to, trivial"
    ):
        register_task(Half)


def install(place: Path, entries: str) -> None:
    """Install a package with entry points, as pip would."""
    (place / "mist_own_tasks.py").write_text("from tests.tasks.own_regression import Sums, UnequalSums\n")
    about = place / "mist_own_tasks-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: mist-own-tasks\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(f"[mistrnn.tasks]\n{entries}\n")


def test_task_of_an_installed_package_is_found_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, "sums = mist_own_tasks:Sums\nunequal-sums = mist_own_tasks:UnequalSums")
    monkeypatch.syspath_prepend(tmp_path)
    assert make_task("sums").name == "sums"
    assert "unequal-sums" not in TASKS, "it was not asked for"
    find_installed_tasks()
    assert "unequal-sums" in TASKS


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("sums = mist_own_tasks:Missing", "cannot load the task 'sums' from mist_own_tasks:Missing: "),
        ("sums = mist_nowhere:Sums", "cannot load the task 'sums' from mist_nowhere:Sums: No module named"),
        ("sum = mist_own_tasks:Sums", "expected the entry point of mist_own_tasks:Sums to be called 'sums', .* got 'sum'"),
    ],
)  # fmt: skip
def test_entry_point_that_does_not_work_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, entry: str, message: str
) -> None:
    install(tmp_path, entry)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UsageError, match=message):
        task_class(entry.partition(" ")[0])
