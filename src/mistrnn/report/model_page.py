"""The report about one model as a single HTML page, which opens offline and needs no script."""

import math
import platform
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from mistrnn import __version__
from mistrnn.errors import UsageError
from mistrnn.files import write_whole
from mistrnn.report import model_charts as charts
from mistrnn.report._html import part, render
from mistrnn.report.evaluation import Evaluation
from mistrnn.report.evaluation_text import percent
from mistrnn.report.model_search import search_section
from mistrnn.report.model_tables import NOTHING, PageTable, number, table, words

PAGE = "report.html"
MOST_CLASSES = 30
"""Classes up to which the confusion matrix is shown whole."""
MOST_PAIRS = 20
"""Confusions that are listed where the matrix is not shown."""

View = dict[str, Any]
"""The part of a page that one section of the template shows."""


def write_model_page(
    folder: Path,
    evaluation: Evaluation,
    *,
    title: str,
    about: Mapping[str, Any],
    history: Sequence[Mapping[str, Any]] = (),
    trials: Sequence[Mapping[str, Any]] = (),
) -> Path:
    """Write report.html into a folder that is there, and return its path.

    Args:
        folder: for report.html; `save_evaluation` calls this, and writes pictures and tables, too.
        evaluation: of the model.
        title: the page's heading.
        about: the model and the data: values, dicts of settings and lists of names. `evaluated_on` (words) stands at the
            top, `command` by itself.
        history: a dict for each epoch: epoch, train_loss, validation_loss (None without a validation), best_epoch.
        trials: a dict for each trial of a search: trial, status, val_error (its validation loss), chosen, settings.
    """
    figures = evaluation.figures
    of_numbers = figures["kind"] == "numbers"
    context: View = {
        "title": title,
        "date": time.strftime("%Y-%m-%d %H:%M"),
        "version": __version__,
        "css": part("page.css") + part("model.css"),
        "headline": _numbers_headline(figures, about) if of_numbers else _classes_headline(figures, about),
        "classes": None if of_numbers else _classes(figures),
        "confusion": None if of_numbers else _confusion(figures),
        **_over_time(evaluation),
        "learning": _learning(history),
        "errors": _errors(evaluation),
        "trials": search_section(trials),
        "about": _about(about),
    }
    sections = {
        "result": "Result",
        "classes": "Classes" if context["classes"] else "",
        "confusion": "Confusion matrix" if context["confusion"] else "",
        "over-time": context["over_time_title"] if context["over_time"] or context["timelines"] else "",
        "training": "Training" if context["learning"] else "",
        "errors": context["errors"]["title"],
        "search": "Search" if context["trials"] else "",
        "about": "About",
    }
    context["parts"] = [(name, heading) for name, heading in sections.items() if heading]
    path = folder / PAGE
    try:
        write_whole(path, render("model.html", context))
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}.") from error
    return path


def _interval(ends: Sequence[float] | None, write: Any, how: str) -> str:
    if ends is None:
        return "No interval: one case is too few."
    return f"95% interval {write(ends[0])} to {write(ends[1])} ({how})"


def _classes_headline(figures: Mapping[str, Any], about: Mapping[str, Any]) -> View:
    baseline, ends = figures["always_the_most_common"], figures["accuracy_95_percent_interval"]
    of_frames = figures["kind"] == "rows"
    how = "bootstrap over whole cases" if of_frames else "Wilson, over cases"
    if ends is not None and ends[0] > baseline["accuracy"]:
        verdict = "The whole interval lies above the baseline."
    elif figures["accuracy"] > baseline["accuracy"]:
        verdict = "The accuracy is above the baseline, but the interval does not exclude the baseline."
    else:
        verdict = "The accuracy is not above the baseline."
    cards = [
        ("Baseline", percent(baseline["accuracy"]), f"always the most common class, {baseline['class']}"),
        ("Balanced accuracy", percent(figures["balanced_accuracy"]), "mean recall of the classes"),
        ("Macro F1", f"{figures['macro_f1']:.3f}", "mean F1 of the classes"),
        ("Cases", f"{figures['recordings' if of_frames else 'count']:,}", ""),
    ]
    if of_frames:
        cards.append(("Labelled frames", f"{figures['count']:,}", ""))
    return {
        "name": "Accuracy",
        "value": percent(figures["accuracy"]),
        "interval": _interval(ends, percent, how),
        "verdict": verdict,
        "cards": cards + _groups_card(figures),
        "notes": _headline_notes(figures, about),
    }


def _numbers_headline(figures: Mapping[str, Any], about: Mapping[str, Any]) -> View:
    error, baseline = figures["root_mean_square_error"], figures["always_the_mean"]["root_mean_square_error"]
    ends, r2_ends = figures["root_mean_square_error_95_percent_interval"], figures["r2_95_percent_interval"]
    if ends is not None and ends[1] < baseline:
        verdict = "The whole interval lies below the error of the baseline."
    elif error < baseline:
        verdict = "The error is below that of the baseline, but the interval does not exclude the baseline."
    else:
        verdict = "The error is not below that of the baseline."
    r2_text = f"95% interval {r2_ends[0]:.3f} to {r2_ends[1]:.3f}" if r2_ends else "no interval"
    cards = [
        ("Baseline RMSE", number(baseline), "always the mean"),
        ("R²", NOTHING if figures["r2"] is None else f"{figures['r2']:.3f}", r2_text),
        ("Mean absolute error", number(figures["mean_absolute_error"]), ""),
        ("Cases", f"{figures['count']:,}", ""),
    ]
    return {
        "name": "RMSE (root mean square error)",
        "value": number(error),
        "interval": _interval(ends, number, "bootstrap over cases"),
        "verdict": verdict,
        "cards": cards + _groups_card(figures),
        "notes": _headline_notes(figures, about),
    }


def _groups_card(figures: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    return [("Groups", f"{figures['groups']:,}", "")] if "groups" in figures else []


def _headline_notes(figures: Mapping[str, Any], about: Mapping[str, Any]) -> list[str]:
    notes = [f"Evaluated on {about['evaluated_on']}."] if about.get("evaluated_on") else []
    if figures.get("groups", math.inf) < figures.get("recordings", figures["count"]):
        notes.append(
            "Cases of one group may be alike. The interval treats them as independent, so it may be too narrow."
        )
    return notes


def _classes(figures: Mapping[str, Any]) -> PageTable:
    unit = "frames" if figures["kind"] == "rows" else "cases"
    rows = []
    for row in figures["classes"]:
        mistaken = row["mistaken_for"]
        taken = f"{mistaken['class']} ({mistaken['count']:,})" if mistaken else NOTHING
        f1 = NOTHING if row["f1"] is None else f"{row['f1']:.3f}"
        rows.append([row["class"], percent(row["precision"]), percent(row["recall"]), f1, f"{row['support']:,}", taken])
    columns = ["class", "precision", "recall", "F1", f"support ({unit})", "most often confused with"]
    return table("", columns, rows, right=(1, 2, 3, 4))


def _confusion(figures: Mapping[str, Any]) -> View:
    names, counts = figures["confusion"]["classes"], figures["confusion"]["counts"]
    unit = "frames" if figures["kind"] == "rows" else "cases"
    rows = []
    for k, (name, own) in enumerate(zip(names, counts, strict=True)):
        total = max(1, sum(own))
        rows.append((name, [(f"{count:,}", f"{count / total:.3f}", j == k) for j, count in enumerate(own)]))
    pairs = [
        (count, names[k], names[j]) for k, own in enumerate(counts) for j, count in enumerate(own) if count and j != k
    ]
    pairs.sort(key=lambda pair: -pair[0])
    if len(names) <= MOST_CLASSES:
        caption = f"Number of {unit}; the shade is the share of the true class. Correct predictions are in bold."
        return {"caption": caption, "names": names, "rows": rows, "pairs": table("", [], [])}
    caption = f"The matrix of {len(names)} classes is in confusion.csv and confusion.png, in the folder of this page."
    listed = [[true, found, f"{count:,}"] for count, true, found in pairs[:MOST_PAIRS]]
    return {
        "caption": caption,
        "names": names,
        "rows": [],
        "pairs": table("", ["true class", "predicted class", unit], listed, right=(2,)),
    }


def _over_time(evaluation: Evaluation) -> View:
    figures = evaluation.figures
    over_time = figures.get("over_time", {})
    view: View = {"over_time": [], "over_time_notes": [], "over_time_title": "Accuracy over time", "timelines": []}
    if figures["kind"] == "numbers":
        view["over_time_title"] = "Predictions"
        view["over_time"] = [{"chart": _scatter(evaluation), "table": None}]
        if len(over_time["after_reading"]) > 1:
            view["over_time"].append(_error_by_share(figures))
    elif "after_reading" in over_time:
        view["over_time"] = [_accuracy_by_share(figures)]
        view["over_time_notes"] = ["Accuracy as if each case had ended after this share of its frames."]
    elif "by_position" in over_time:
        view["over_time"] = [_accuracy_by_position(over_time["by_position"])]
        view["over_time_notes"] = _near_changes(over_time["near_changes"])
        names = figures["confusion"]["classes"]
        view["timelines"] = [charts.timeline_chart(one, names) for one in evaluation.timelines]
    return view


def _accuracy_by_share(figures: Mapping[str, Any]) -> View:
    parts = figures["over_time"]["after_reading"]
    shares, values = [one["read"] for one in parts], [one["accuracy"] for one in parts]
    alt = f"Accuracy {values[0]:.1%} after {shares[0]:.0%} of each case, {values[-1]:.1%} at its end."
    title = "Accuracy by share of the case that is read"
    chart = charts.Chart(title, alt, charts.share_axis("share of each case"), charts.share_axis("accuracy"))
    chart.add_level(figures["always_the_most_common"]["accuracy"], "baseline: most common class")
    chart.add_line("accuracy", shares, values)
    for share, value in zip(shares, values, strict=True):
        chart.add_dot(share, value, f"{value:.1%} after {share:.0%}")
    rows = [[f"{share:.0%}", f"{value:.1%}"] for share, value in zip(shares, values, strict=True)]
    return {"chart": chart, "table": table("", ["share of each case", "accuracy"], rows, right=(1,))}


def _accuracy_by_position(parts: Sequence[Mapping[str, Any]]) -> View:
    places = [(one["from"] + one["to"]) / 2 for one in parts]
    values = [None if one["error"] is None else 1 - one["error"] for one in parts]
    known = [value for value in values if value is not None]
    alt = f"Accuracy in each tenth of the cases, from {min(known):.1%} to {max(known):.1%}."
    title = "Accuracy by position in the case"
    chart = charts.Chart(title, alt, charts.share_axis("position in the case"), charts.share_axis("accuracy"))
    chart.add_line("accuracy", places, values)
    rows = []
    for one, place, value in zip(parts, places, values, strict=True):
        span = f"{one['from']:.0%} to {one['to']:.0%}"
        rows.append([span, percent(value), f"{one['rows']:,}"])
        if value is not None:
            chart.add_dot(place, value, f"{value:.1%} from {span}")
    return {"chart": chart, "table": table("", ["position", "accuracy", "frames"], rows, right=(1, 2))}


def _near_changes(near: Mapping[str, Any] | None) -> list[str]:
    if near is None:
        return ["The true class never changes within a case."]
    frames = "1 frame" if near["within_rows"] == 1 else f"{near['within_rows']} frames"
    return [
        f"The true class changes {near['changes']:,} times. The error rate is {percent(near['before']['error'])} in the "
        f"{frames} before a change, {percent(near['after']['error'])} in the {frames} from the change on and "
        f"{percent(near['elsewhere']['error'])} elsewhere."
    ]


def _error_by_share(figures: Mapping[str, Any]) -> View:
    parts, baseline = figures["over_time"]["after_reading"], figures["always_the_mean"]["mean_absolute_error"]
    shares, values = [one["read"] for one in parts], [one["mean_absolute_error"] for one in parts]
    alt = f"Mean absolute error {values[0]:.4g} after {shares[0]:.0%} of each case, {values[-1]:.4g} at its end."
    axis = charts.fitted_axis("mean absolute error", [*values, baseline], zero=True)
    title = "Error by share of the case that is read"
    chart = charts.Chart(title, alt, charts.share_axis("share of each case"), axis)
    chart.add_level(baseline, "baseline: mean")
    chart.add_line("mean absolute error", shares, values)
    for share, value in zip(shares, values, strict=True):
        chart.add_dot(share, value, f"{value:.4g} after {share:.0%}")
    rows = [[f"{share:.0%}", number(value)] for share, value in zip(shares, values, strict=True)]
    return {"chart": chart, "table": table("", ["share of each case", "mean absolute error"], rows, right=(1,))}


def _scatter(evaluation: Evaluation) -> charts.Chart:
    rows = [(str(row[0]), float(str(row[1])), float(str(row[2]))) for row in evaluation.rows]
    shown = rows[:: math.ceil(len(rows) / charts.MOST_DOTS)]
    everything = [value for _, *both in shown for value in both]
    x, y = (charts.fitted_axis(name, everything) for name in ("true", "predicted"))
    r2 = evaluation.figures["r2"]
    alt = f"{len(shown):,} cases, predicted against true values; R² {'not defined' if r2 is None else f'{r2:.3f}'}."
    chart = charts.Chart("Predicted against true values", alt, x, y)
    chart.add_diagonal("predicted = true")
    for own, true, found in shown:
        chart.add_dot(true, found, f"{own}: true {true:.4g}, predicted {found:.4g}")
    return chart


def _learning(history: Sequence[Mapping[str, Any]]) -> View | None:
    epochs = [float(one["epoch"]) for one in history]
    curves = {
        name: [one.get(key) for one in history]
        for key, name in (("train_loss", "training"), ("validation_loss", "validation"))
    }
    finite = {
        name: [value for value in values if value is not None and math.isfinite(value)]
        for name, values in curves.items()
    }
    known = [value for values in finite.values() for value in values]
    if not known:
        return None
    kept = history[-1].get("best_epoch") if finite["validation"] else None
    note = f"{len(epochs):,} epochs." + (f" The model keeps the weights of epoch {kept:,}." if kept else "")
    note += "" if finite["validation"] else " There is no validation set."
    alt = "; ".join(
        f"{name} loss from {values[0]:.4g} to {values[-1]:.4g}, lowest {min(values):.4g}"
        for name, values in finite.items()
        if values
    )
    axis = charts.whole_axis("epoch", epochs[0], max(epochs[-1], epochs[0] + 1))
    chart = charts.Chart("Loss over epochs", f"{alt}. {note}", axis, charts.fitted_axis("loss", known, may_be_log=True))
    if kept:
        chart.add_moment(kept, f"kept: epoch {kept:,}")
    for name, values in curves.items():
        if finite[name]:
            chart.add_line(name, epochs, values)
    return {"note": note, "chart": chart}


def _errors(evaluation: Evaluation) -> View:
    kind, errors = evaluation.figures["kind"], evaluation.errors
    if kind == "numbers":
        rows = [[one["id"], *(number(one[key]) for key in ("true", "predicted", "error"))] for one in errors]
        caption = f"The {len(rows)} cases with the largest error."
        found = table(caption, ["case", "true", "predicted", "error"], rows, right=(1, 2, 3))
        return {"title": "Largest errors", "table": found, "none": "Every case is predicted exactly."}
    if kind == "rows":
        rows = [
            [one["id"], f"{one['from']:,} to {one['to']:,}", one["true"], one["predicted"], f"{one['probability']:.1%}"]
            for one in errors
        ]
        caption = "Stretches of one error, long and confident ones first. The probability is the mean over the frames."
        found = table(caption, ["case", "frames", "true", "predicted", "probability"], rows, right=(4,))
        return {"title": "Errors to look at", "table": found, "none": "No labelled frame is wrong."}
    rows = [[one["id"], one["true"], one["predicted"], f"{one['probability']:.1%}"] for one in errors]
    caption = "Wrong cases, the highest probability of the predicted class first."
    found = table(caption, ["case", "true", "predicted", "probability"], rows, right=(3,))
    return {"title": "Errors to look at", "table": found, "none": "No case is wrong."}


def _about(about: Mapping[str, Any]) -> View:
    facts, groups, lists = [], [], []
    for name, value in about.items():
        if name == "command" or value is None:
            continue
        if isinstance(value, Mapping):
            own = [(words(key), _written(one)) for key, one in value.items() if one is not None]
            groups.append((words(name).capitalize(), own))
        elif isinstance(value, list | tuple):
            lists.append((words(name).capitalize(), [str(one) for one in value]))
        else:
            facts.append((words(name), _written(value)))
    facts.append(("versions", f"mistrnn {__version__}, torch {torch.__version__}, Python {platform.python_version()}"))
    return {"facts": facts, "groups": groups, "lists": lists, "command": about.get("command")}


def _written(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:g}" if isinstance(value, float) else str(value)
