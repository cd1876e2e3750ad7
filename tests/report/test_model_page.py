"""The page about a model: what it says, what hostile labels cannot do, and how it opens in a browser."""

import errno
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from axe_playwright_python.sync_playwright import Axe

from mistrnn.errors import UsageError
from mistrnn.intervals import bootstrap, wilson
from mistrnn.report import model_page
from mistrnn.report.evaluation import Evaluation, evaluate_numbers, evaluate_recordings, evaluate_rows
from mistrnn.report.evaluation_folder import save_evaluation
from mistrnn.report.model_charts import Axis, Chart, fitted_axis
from mistrnn.report.model_page import write_model_page
from mistrnn.report.model_tables import NOTHING

HOSTILE = "<script>document.title='broken in'</script>\"'&amp;{{7*7}}"
CLASSES = ["走る", HOSTILE, "naïve"]
HISTORY = [
    {"epoch": 1, "train_loss": 1.5, "validation_loss": 1.6, "best_epoch": 1},
    {"epoch": 2, "train_loss": None, "validation_loss": None, "best_epoch": 1},
    {"epoch": 3, "train_loss": 0.5, "validation_loss": 0.75, "best_epoch": 3},
    {"epoch": 4, "train_loss": 0.25, "validation_loss": 1.0, "best_epoch": 3},
]
TRIALS: list[dict[str, Any]] = [
    {
        "trial": 0,
        "status": "ok",
        "val_error": 0.25,
        "learning_rate": 1e-3,
        "hidden_size": 8,
        "curve": [1, 2],
        "chosen": True,
        "device": "cuda:0",
    },
    {"trial": 1, "status": "stopped", "val_error": 0.125, "learning_rate": 1e-2, "hidden_size": 16, "curve": []},
    {"trial": 2, "status": "diverged", "val_error": None, "learning_rate": 1.0, "hidden_size": HOSTILE, "curve": []},
]


def sure(codes: object, size: int = 3) -> np.ndarray:
    return (0.7 * np.eye(size) + 0.1)[np.asarray(codes)].astype(np.float32)


def of_recordings(classes: list[str] = CLASSES) -> Evaluation:
    paths = [[1] * 5 + [0] * 5, [1] * 10, [2] * 20, [0] * 9 + [1]]
    groups = ["a", "a", "b", "b"]
    return evaluate_recordings(
        ["w", "x", "y", HOSTILE], np.array([0, 1, 2, 0]), list(map(sure, paths)), classes, groups
    )


def of_rows() -> Evaluation:
    truth = [np.array([0, 0, 0, 0, 1, 1, 1, 1, -1, -1]), np.array([2] * 10)]
    found = [np.array([0, 0, 1, 1, 0, 1, 1, 1, 2, 2]), np.array([1] + [2] * 9)]
    return evaluate_rows([HOSTILE, "two"], [np.arange(10)] * 2, truth, list(map(sure, found)), CLASSES)


def of_numbers() -> Evaluation:
    truth, found = np.array([1.0, 2, 4, 6, 8]), np.array([1.0, 3, 4, 6, 8])
    return evaluate_numbers(["a", "b", HOSTILE, "d", "e"], truth, found, {0.5: truth + 2, 1.0: found})


def page(folder: Path, evaluation: Evaluation, **options: Any) -> str:
    settings: dict[str, Any] = {"title": HOSTILE, "about": {}, **options}
    return write_model_page(folder, evaluation, **settings).read_text(encoding="utf-8")


def words_of(text: str) -> str:
    """Return what a reader sees, in one line."""
    found: list[str] = []
    parser = HTMLParser()
    parser.handle_data = found.append  # type: ignore[method-assign]
    parser.feed(text)
    return re.sub(r"\s+", " ", " ".join(found))


def test_classes_are_reported_with_interval_baseline_and_counts(tmp_path: Path) -> None:
    text = page(tmp_path, of_recordings(list("abc")), title="Mine", history=HISTORY)
    words = words_of(text)
    assert "Accuracy 75.0%" in words
    assert "95% interval 30.1% to 95.4% (Wilson, over cases)" in words
    assert "Baseline 50.0% always the most common class, a" in words
    assert "does not exclude the baseline" in words
    assert "Cases 4" in words
    assert "Groups 2" in words
    assert "may be too narrow" in words
    assert "a 100.0% 50.0% 0.667 2 b (1)" in words  # precision, recall, F1, support
    assert '<td class="right" style="--share:0.500">1</td><td style="--share:0.500">1</td>' in text
    assert "Accuracy by share of the case that is read" in words
    assert "baseline: most common class" in words


def test_learning_curves_have_both_losses_and_the_kept_epoch(tmp_path: Path) -> None:
    text = page(tmp_path, of_recordings(), history=HISTORY)
    words = words_of(text)
    assert "4 epochs. The model keeps the weights of epoch 3." in words
    assert "kept: epoch 3" in words
    assert "training loss from 1.5 to 0.25, lowest 0.25; validation loss from 1.6 to 1, lowest 0.75" in text
    assert text.count('<polyline class="line style0"') == 2  # accuracy, and training after the gap
    assert text.count('<polyline class="line style1"') == 1
    alone = [{**one, "validation_loss": None} for one in HISTORY]
    assert "There is no validation set." in words_of(page(tmp_path, of_recordings(), history=alone))


@pytest.mark.parametrize("history", [(), [{"epoch": 1, "train_loss": None, "validation_loss": None, "best_epoch": 0}]])
def test_page_without_a_history_leaves_learning_curves_out(tmp_path: Path, history: Any) -> None:
    text = page(tmp_path, of_recordings(), history=history)
    assert "Loss over epochs" not in text
    assert 'href="#training"' not in text


def test_a_single_epoch_is_a_point(tmp_path: Path) -> None:
    text = page(tmp_path, of_numbers(), history=HISTORY[:1])
    assert '<circle class="style1" r="3"' in text


def test_errors_are_listed_by_confidence_and_at_most_twenty(tmp_path: Path) -> None:
    confidence = np.linspace(0.5, 0.99, 30)
    shares = [np.array([[1 - p, p]], dtype=np.float32) for p in confidence]
    names = [f"case-{k}" for k in range(30)]
    evaluation = evaluate_recordings(names, np.zeros(30, dtype=np.int64), shares, ["a", "b"])
    assert [one["id"] for one in evaluation.errors] == [f"case-{k}" for k in range(29, 9, -1)]
    assert evaluation.errors[0]["probability"] == pytest.approx(0.99)
    assert "case-29 a b 99.0% case-28 a b 97.3%" in words_of(page(tmp_path, evaluation))


def test_long_wrong_stretches_come_before_short_ones(tmp_path: Path) -> None:
    evaluation = of_rows()
    assert [(one["from"], one["to"], one["id"]) for one in evaluation.errors] == [
        (3, 4, HOSTILE), (5, 5, HOSTILE), (1, 1, "two"),
    ]  # fmt: skip
    assert evaluation.errors[0]["probability"] == pytest.approx(0.8)
    assert "3 to 4 走る" in words_of(page(tmp_path, evaluation))


def test_no_error_is_said(tmp_path: Path) -> None:
    right = evaluate_recordings(["a"], np.array([0]), [sure([0])], CLASSES)
    assert "No case is wrong." in words_of(page(tmp_path, right))
    exact = evaluate_numbers(list("ab"), np.array([1.0, 2]), np.array([1.0, 2]), {1.0: np.array([1.0, 2])})
    assert "Every case is predicted exactly." in words_of(page(tmp_path, exact))


def test_hostile_and_foreign_labels_stay_text(tmp_path: Path) -> None:
    about = {"command": HOSTILE, "evaluated_on": HOSTILE, "settings": {HOSTILE: HOSTILE}, HOSTILE: [HOSTILE]}
    for evaluation in (of_recordings(), of_rows(), of_numbers()):
        text = page(tmp_path, evaluation, about=about, history=HISTORY, trials=TRIALS)
        assert "<script" not in text.lower()
        assert "49" not in re.sub(r"\d*\.?\d*49\d*\.?\d*[,\"< ]", "", words_of(text))
        assert HOSTILE in words_of(text).replace("&amp;amp;", "&amp;")
    assert "走る" in page(tmp_path, of_recordings())
    assert "http" not in page(tmp_path, of_recordings()).replace("http-equiv", "")


def test_a_name_that_is_no_text_is_written_in_numbers(tmp_path: Path) -> None:
    assert "\\udcff" in page(tmp_path, of_recordings(), about={"model": "b\udcff"})


def test_a_single_class_in_the_test_set_is_reported(tmp_path: Path) -> None:
    alone = evaluate_recordings(["a"], np.array([1]), [sure([1])], list("abc"))
    words = words_of(page(tmp_path, alone))
    assert "Accuracy 100.0%" in words
    assert f"a - - {NOTHING} 0 {NOTHING}" in words  # neither precision nor recall of a class that is not there
    assert "The accuracy is not above the baseline." in words


def test_frames_have_an_interval_over_whole_cases_and_timelines(tmp_path: Path) -> None:
    evaluation = of_rows()
    low, high = evaluation.figures["accuracy_95_percent_interval"]
    assert (low, high) == (5 / 8, 9 / 10)  # one recording alone, or the other
    text = page(tmp_path, evaluation)
    words = words_of(text)
    assert "95% interval 62.5% to 90.0% (bootstrap over whole cases)" in words
    assert "Labelled frames 18" in words
    assert "Case two: the longest" in words
    assert "lowest accuracy" in words
    assert "The true class changes 1 times." in words
    assert text.count('<rect class="bar" x') == 2 + 1
    assert text.count('<rect class="bar predicted" x') == 5 + 2
    one = evaluate_rows(["a"], [np.arange(3)], [np.zeros(3, dtype=np.int64)], [sure([0, 0, 1])], CLASSES)
    words = words_of(page(tmp_path, one))
    assert "No interval: one case is too few." in words
    assert "The true class never changes within a case." in words


def test_a_long_timeline_is_thinned(tmp_path: Path) -> None:
    truth = np.arange(50_000) % 2
    text = page(tmp_path, evaluate_rows(["a"], [np.arange(50_000)], [truth], [sure(1 - truth)], CLASSES))
    assert "Drawn from every 50th frame." in text
    assert len(text) < 400_000


def test_numbers_have_intervals_and_a_scatter(tmp_path: Path) -> None:
    words = words_of(page(tmp_path, of_numbers()))
    assert "RMSE (root mean square error) 0.4472" in words
    assert re.search(r"95% interval 0 to 0\.\d+ \(bootstrap over cases\)", words)
    assert "Baseline RMSE 2.561 always the mean" in words
    assert re.search(r"R² 0\.970 95% interval 0\.\d+ to 1\.000", words)
    assert "The whole interval lies below the error of the baseline." in words
    assert "Predicted against true values" in words
    assert "b 2 3 1" in words  # the largest error
    same = evaluate_numbers(["a"], np.array([1.0]), np.array([1.5]), {1.0: np.array([1.5])})
    words = words_of(page(tmp_path, same))
    assert f"R² {NOTHING} no interval" in words
    assert "The error is not below that of the baseline." in words


def test_a_matrix_of_many_classes_becomes_a_list(tmp_path: Path) -> None:
    names = [f"c{k}" for k in range(40)]
    many = evaluate_recordings(["a", "b"], np.array([0, 3]), [sure([1], 40), sure([3], 40)], names)
    words = words_of(page(tmp_path, many))
    assert "The matrix of 40 classes is in confusion.csv" in words
    assert "Most frequent confusions" in words
    assert "c0 c1 1" in words


def test_trials_are_ranked_and_left_out_without_a_search(tmp_path: Path) -> None:
    words = words_of(page(tmp_path, of_recordings(), trials=TRIALS))
    assert "3 trials, 2 with a validation loss. Trial 1 is the best, with 0.125." in words
    assert "Validation loss against learning rate" in words
    assert f"1 0.125 stopped 0.01 16 0 0.25 chosen 0.001 8 2 {NOTHING} diverged 1" in words
    assert "Trials that were stopped early have hollow dots." in words
    assert "curve" not in words
    assert "cuda:0" not in words
    assert 'id="search"' not in page(tmp_path, of_recordings())
    both = [{**one, "chosen": one["trial"] < 2} for one in TRIALS]
    assert "The model is the mean of the 2 chosen trials." in words_of(page(tmp_path, of_recordings(), trials=both))
    nothing = [{"trial": 0, "status": "crashed", "val_error": None, "learning_rate": 0.1}]
    words = words_of(page(tmp_path, of_recordings(), trials=nothing))
    assert "1 trials, 0 with a validation loss." in words
    assert "against learning rate" not in words


def test_about_has_values_settings_lists_and_versions(tmp_path: Path) -> None:
    about = {
        "weights": 12345,
        "stopped": False,
        "seconds": 1.5,
        "group": None,
        "settings": {"num_layers": 2, "dropout": None},
        "held_out": ["one", "two"],
        "command": "mist fit in",
    }
    words = words_of(page(tmp_path, of_recordings(), about=about))
    assert "parameters 12,345 stopped no seconds 1.5 versions mistrnn" in words
    assert "Settings blocks 2" in words
    assert "Held out (2) one, two" in words
    assert "Command: mist fit in" in words
    assert "dropout" not in words


def test_style_follows_the_colour_scheme_and_has_no_script(tmp_path: Path) -> None:
    text = page(tmp_path, of_recordings())
    assert "@media (prefers-color-scheme: dark)" in text
    assert "default-src 'none'; style-src 'unsafe-inline'\"" in text
    assert text.count("<h1>") == 1
    assert '<html lang="en">' in text


def test_page_that_cannot_be_written_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(model_page, "write_whole", fail)
    with pytest.raises(UsageError, match=r"cannot write .*report\.html: No space left on device"):
        write_model_page(tmp_path, of_numbers(), title="", about={})


def test_report_folder_begins_with_the_page(tmp_path: Path) -> None:
    files = save_evaluation(
        of_recordings(list("abc")), tmp_path, title="Mine", about={}, history=HISTORY, trials=TRIALS
    )
    assert files[0] == tmp_path / "report.html"
    text = files[0].read_text(encoding="utf-8")
    assert "Loss over epochs" in text
    assert 'id="search"' in text
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "report.html").write_text("mine")
    with pytest.raises(UsageError, match=r"there is a report\.html already"):
        save_evaluation(of_rows(), tmp_path / "own", title="", about={})


def test_intervals_are_those_of_the_literature() -> None:
    assert wilson(81, 263) == pytest.approx([0.2553, 0.3662], abs=5e-5)  # Newcombe, 1998, table I, method 3
    values = np.random.default_rng(0).normal(size=400)
    ends = bootstrap(lambda drawn: float(values[drawn].mean()), 400)
    assert ends is not None
    half = 1.96 * values.std() / 20
    assert ends == pytest.approx([values.mean() - half, values.mean() + half], abs=0.02)
    assert ends == bootstrap(lambda drawn: float(values[drawn].mean()), 400)
    assert bootstrap(lambda _: 0.0, 1) is None
    assert bootstrap(lambda _: float("nan"), 5) is None


def test_scales_hold_their_values_whatever_they_are() -> None:
    for values in ([0.0], [3.0, 3.0], [-1e-9, 1e-9], [1e-5, 1e5], [0.2, 900.0], [1e8, 1e8 + 1]):
        axis = fitted_axis("loss", values, may_be_log=True)
        assert all(0 <= axis.share(value) <= 1 for value in values)
        assert 2 <= len(axis.ticks()) <= 9
        assert all(0 <= axis.share(tick) <= 1 + 1e-9 for tick in axis.ticks())
    chart = Chart("", "", Axis("", 0, 10), Axis("", 0, 1))
    chart.add_line("long", range(10_000), [0.5] * 10_000)
    assert len(chart.lines[0].pieces[0].split()) <= 300


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("make", [of_recordings, of_rows, of_numbers])
def test_page_opens_in_a_browser_and_can_be_used_by_all(browser: Any, tmp_path: Path, make: Any, scheme: str) -> None:
    page(tmp_path, make(), history=HISTORY, trials=TRIALS, about={"held_out": ["one"], "settings": {"dropout": 0.5}})
    opened = browser.new_page(viewport={"width": 1000, "height": 800}, color_scheme=scheme)
    said: list[str] = []
    asked: list[str] = []
    opened.on("console", lambda message: said.append(message.text))
    opened.on("pageerror", lambda error: said.append(str(error)))
    opened.on("request", lambda request: asked.append(request.url))
    opened.goto((tmp_path / "report.html").as_uri())
    assert said == []
    assert asked == [(tmp_path / "report.html").as_uri()]
    assert opened.title() == HOSTILE
    assert opened.locator("svg[role=img]").count() >= 3
    assert all(one.get_attribute("aria-label") for one in opened.locator("svg[role=img]").all())
    found = Axe().run(opened)
    assert found.violations_count == 0, found.generate_report()
    opened.set_viewport_size({"width": 390, "height": 800})
    assert opened.evaluate("document.documentElement.scrollWidth") <= 390
    opened.close()
