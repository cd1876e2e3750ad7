"""The report about a model: figures that can be checked by hand, printed, drawn and written."""

import errno
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure
from rich.console import Console
from sklearn.metrics import balanced_accuracy_score, f1_score, precision_recall_fscore_support, r2_score

from mistrnn.errors import UsageError
from mistrnn.report.evaluation import Evaluation, evaluate_numbers, evaluate_recordings, evaluate_rows
from mistrnn.report.evaluation_folder import FILES, save_evaluation
from mistrnn.report.evaluation_text import print_evaluation

CLASSES = ["[bold]a", "$b$", "true"]


def sure(codes: object, size: int = 3) -> np.ndarray:
    return (0.7 * np.eye(size) + 0.1)[np.asarray(codes)].astype(np.float32)


def of_rows() -> Evaluation:
    truth = [np.array([0, 0, 0, 0, 1, 1, 1, 1, -1, -1]), np.array([2] * 10)]
    found = [np.array([0, 0, 0, 0, 0, 1, 1, 1, 2, 2]), np.array([1] + [2] * 9)]
    return evaluate_rows(
        ["one", "two"], [np.arange(10)[::-1], np.arange(10)], truth, [sure(one) for one in found], CLASSES
    )


def of_recordings() -> Evaluation:
    paths = [[1] * 5 + [0] * 5, [1] * 10, [2] * 20, [0] * 9 + [1]]
    return evaluate_recordings(list("wxyz"), np.array([0, 1, 2, 0]), [sure(path) for path in paths], CLASSES)


def of_numbers() -> Evaluation:
    truth, found = np.array([1.0, 2, 4]), np.array([1.0, 3, 4])
    return evaluate_numbers(list("abc"), truth, found, {0.5: truth + 2, 1.0: found})


def printed(evaluation: Evaluation) -> str:
    file = io.StringIO()
    print_evaluation(evaluation, Console(file=file))
    return file.getvalue()


def test_class_figures_are_those_of_scikit_learn() -> None:
    random = np.random.default_rng(0)
    truth, found = random.integers(0, 4, 200), random.integers(0, 3, 200)
    figures = evaluate_recordings(
        list(map(str, range(200))), truth, [sure([one], 4) for one in found], list("abcd")
    ).figures
    precision, recall, f1, support = precision_recall_fscore_support(truth, found, zero_division=0)
    rows = figures["classes"]
    np.testing.assert_allclose([row["precision"] or 0 for row in rows], precision)
    np.testing.assert_allclose([row["recall"] for row in rows], recall)
    np.testing.assert_allclose([row["f1"] for row in rows], f1)
    assert [row["support"] for row in rows] == support.tolist()
    assert rows[3]["precision"] is None  # never predicted
    assert figures["accuracy"] == pytest.approx((truth == found).mean())
    assert figures["balanced_accuracy"] == pytest.approx(balanced_accuracy_score(truth, found))
    assert figures["macro_f1"] == pytest.approx(f1_score(truth, found, average="macro"))
    assert "over_time" not in figures  # nothing is known of earlier steps


def test_rows_are_judged_by_place_and_by_distance_from_a_change() -> None:
    figures = of_rows().figures
    assert (figures["count"], figures["recordings"], figures["accuracy"]) == (18, 2, 16 / 18)
    by_position = figures["over_time"]["by_position"]
    assert [part["rows"] for part in by_position] == [2] * 8 + [1] * 2
    assert [part["error"] for part in by_position] == [0.5, 0, 0, 0, 0.5, 0, 0, 0, 0, 0]
    near = figures["over_time"]["near_changes"]
    assert (near["changes"], near["within_rows"]) == (1, 1)  # an end of the labels is no change
    assert near["before"] == {"rows": 1, "error": 0.0}
    assert near["after"] == {"rows": 1, "error": 1.0}
    assert near["elsewhere"] == {"rows": 16, "error": 1 / 16}


def test_a_class_that_follows_rows_without_a_label_is_a_change() -> None:
    truth = np.array([-1, 0, 0, -1, -1, 1, 1, -1, 1, 1])
    found = np.array([0, 0, 0, 0, 0, 0, 1, 1, 1, 1])
    near = evaluate_rows(["one"], [np.arange(10)], [truth], [sure(found)], CLASSES).figures["over_time"]["near_changes"]
    assert (near["changes"], near["within_rows"]) == (1, 1)
    assert near["after"] == {"rows": 1, "error": 1.0}
    assert near["elsewhere"] == {"rows": 5, "error": 0.0}


def test_recordings_are_judged_by_how_much_was_read() -> None:
    figures = of_recordings().figures
    after = {part["read"]: part["accuracy"] for part in figures["over_time"]["after_reading"]}
    assert (after[0.5], after[0.6], after[0.9], after[1.0]) == (0.75, 1.0, 1.0, 0.75)
    low, high = figures["accuracy_95_percent_interval"]
    assert (low, high) == (pytest.approx(0.3006, abs=1e-3), pytest.approx(0.9544, abs=1e-3))


def test_numbers_are_judged_by_their_distance() -> None:
    figures = of_numbers().figures
    assert figures["mean_absolute_error"] == pytest.approx(1 / 3)
    assert figures["root_mean_square_error"] == pytest.approx((1 / 3) ** 0.5)
    assert figures["r2"] == pytest.approx(r2_score([1, 2, 4], [1, 3, 4]))
    assert [part["mean_absolute_error"] for part in figures["over_time"]["after_reading"]] == [2, pytest.approx(1 / 3)]
    same = evaluate_numbers(["a"], np.array([1.0]), np.array([1.5]), {1.0: np.array([1.5])})
    assert same.figures["r2"] is None
    assert "R² not defined, because all are the same" in printed(same)


def test_what_is_printed_can_be_read_in_a_pipe() -> None:
    words = printed(of_rows())
    assert "18 labelled rows of 2 recordings: accuracy 88.9% (95% interval" in words
    assert "Baseline, always 'true': 55.6%." in words
    assert "1  [bold]a" in words  # people's words are no markup
    assert (
        "Error rate near the 1 change of the true class: 0.0% in the 1 row before a change, 100.0% in the 1 row after"
        in words
    )
    words = printed(of_recordings())
    assert "4 recordings: accuracy 75.0% (95% interval 30.1% to 95.4%)." in words
    assert "$b$ (1)" in words
    assert "3 recordings: mean absolute error 0.3333 (baseline, always the mean: 1.111)" in printed(of_numbers())
    constant = evaluate_rows(["a"], [np.arange(3)], [np.zeros(3, int)], [sure([0, 0, 1])], CLASSES)
    assert "The true class never changes within a recording." in printed(constant)
    many = evaluate_recordings(["a"], np.array([0]), [sure([1], 30)], [f"c{k}" for k in range(30)])
    assert "The confusion matrix of 30 classes is in confusion.png" in printed(many)
    smile = printed(evaluate_recordings(["a"], np.array([0]), [sure([1], 2)], [":smile:", "[red]\\"]))
    assert "Baseline, always ':smile:'" in smile
    assert "1  :smile:" in smile
    assert "[red]\\ (1)" in smile


@pytest.mark.parametrize("make", [of_rows, of_recordings, of_numbers])
def test_report_is_written_as_numbers_table_and_pictures(tmp_path: Path, make: object) -> None:
    evaluation = make()  # type: ignore[operator]
    (tmp_path / "mine.txt").write_text("stays")
    files = save_evaluation(evaluation, tmp_path, title="a title", about={"seed": 0})
    assert {path.name for path in tmp_path.iterdir()} == {path.name for path in files} | {"mine.txt"}
    assert {path.name for path in files} <= set(FILES)
    stored = json.loads((tmp_path / "report.json").read_text())
    assert (stored["format"], stored["version"], stored["about"]) == ("mistrnn-report", 1, {"seed": 0})
    assert {key: stored[key] for key in evaluation.figures} == json.loads(json.dumps(evaluation.figures))
    assert (tmp_path / "where-it-errs.png").read_bytes().startswith(b"\x89PNG")


def test_tables_of_predictions_say_what_was_true(tmp_path: Path) -> None:
    save_evaluation(of_rows(), tmp_path, title="", about={})
    lines = (tmp_path / "predictions.csv").read_text().splitlines()
    assert lines[:2] == ["id,row,true,label,probability", "one,10,[bold]a,[bold]a,0.800000"]
    assert lines[10] == "one,1,,true,0.800000"
    assert (tmp_path / "confusion.csv").read_text().startswith("true class,[bold]a,$b$,true\n[bold]a,4,0,0\n")
    assert "true,5,8,$b$" in (tmp_path / "longest-recording.csv").read_text() or (
        "true,1,10,true" in (tmp_path / "longest-recording.csv").read_text()
    )


def test_only_an_earlier_report_is_overwritten_and_only_by_force(tmp_path: Path) -> None:
    save_evaluation(of_rows(), tmp_path, title="", about={})
    with pytest.raises(UsageError, match=r"there is a report\.json already; .* overwrite it with --force"):
        save_evaluation(of_numbers(), tmp_path, title="", about={})
    save_evaluation(of_numbers(), tmp_path, title="", about={}, force=True)
    assert not (tmp_path / "confusion.png").exists()  # it would belong to the earlier one
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "predictions.csv").write_text("of somebody's")
    with pytest.raises(UsageError, match=r"expected an earlier report, .* got other files, such as predictions\.csv"):
        save_evaluation(of_numbers(), tmp_path / "own", title="", about={}, force=True)
    assert (tmp_path / "own" / "predictions.csv").read_text() == "of somebody's"


def test_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match=r"cannot write to the folder .*file/inside: Not a directory"):
        save_evaluation(of_rows(), tmp_path / "file" / "inside", title="", about={})


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt()])
def test_a_report_that_breaks_off_leaves_the_earlier_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    save_evaluation(of_rows(), tmp_path, title="", about={})
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}

    def fail(*_: Any, **__: Any) -> None:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(Figure, "savefig", fail)
        with pytest.raises((UsageError, KeyboardInterrupt)):
            save_evaluation(of_numbers(), tmp_path, title="", about={}, force=True)
        with pytest.raises((UsageError, KeyboardInterrupt)):
            save_evaluation(of_numbers(), tmp_path / "new", title="", about={})
    assert list((tmp_path / "new").iterdir()) == []
    (tmp_path / "new").rmdir()
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    save_evaluation(of_numbers(), tmp_path, title="", about={}, force=True)
