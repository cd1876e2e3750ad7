"""The report about a model as it is printed, for people."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from mistrnn.report.evaluation import Evaluation

MOST_CLASSES_PRINTED = 20


def print_evaluation(evaluation: Evaluation, console: Console) -> None:
    """Print a report for people: on a terminal, or in a pipe."""
    if not console.is_terminal:
        console = Console(file=console.file, width=160)  # no table is cut because a pipe has no width
    figures = evaluation.figures

    def line(text: str) -> None:
        console.print(text, highlight=False, markup=False, emoji=False, soft_wrap=True)

    if figures["kind"] == "numbers":
        _print_numbers(figures, console, line)
        return
    common = figures["always_the_most_common"]
    what = f"{figures['count']:,} recordings"
    if figures["kind"] == "rows":
        what = f"{figures['count']:,} labelled rows of {figures['recordings']:,} recordings"
    ends = figures["accuracy_95_percent_interval"]
    interval = f" (95% interval {ends[0]:.1%} to {ends[1]:.1%})" if ends else ""
    line(f"{what}: accuracy {figures['accuracy']:.1%}{interval}.")
    line(
        f"Baseline, always {common['class']!r}: {common['accuracy']:.1%}. Balanced accuracy: "
        f"{figures['balanced_accuracy']:.1%}. Macro F1: {figures['macro_f1']:.3f}."
    )
    _print_classes(figures, console, line)
    over_time = figures.get("over_time", {})
    if "after_reading" in over_time:
        line("\nAccuracy by share of each recording that is read")
        table = _table(*(f"{one['read']:.0%}" for one in over_time["after_reading"]))
        table.add_row(*(f"{one['accuracy']:.1%}" for one in over_time["after_reading"]))
        console.print(table)
    if "by_position" in over_time:
        line("\nError rate in each tenth of the recordings")
        table = _table(*(f"to {one['to']:.0%}" for one in over_time["by_position"]))
        table.add_row(*(percent(one["error"]) for one in over_time["by_position"]))
        console.print(table)
        near = over_time["near_changes"]
        if near is None:
            line("The true class never changes within a recording.")
        else:
            rows = "1 row" if near["within_rows"] == 1 else f"{near['within_rows']} rows"
            changes = "1 change" if near["changes"] == 1 else f"{near['changes']:,} changes"
            line(
                f"\nError rate near the {changes} of the true class: {percent(near['before']['error'])} in "
                f"the {rows} before a change, {percent(near['after']['error'])} in the {rows} after it, "
                f"{percent(near['elsewhere']['error'])} elsewhere."
            )


def _print_classes(figures: Mapping[str, Any], console: Console, line: Any) -> None:
    line("")
    full = _table("", "class", "precision", "recall", "F1", figures["kind"], "most often confused with", left=(1, 6))
    short = _table("", "class", "precision", "recall", "F1", figures["kind"], left=(1,))
    for number, row in enumerate(figures["classes"], 1):
        mistaken = row["mistaken_for"]
        words = f"{mistaken['class']} ({mistaken['count']:,})" if mistaken else "-"
        f1 = "-" if row["f1"] is None else f"{row['f1']:.3f}"
        cells = [percent(row["precision"]), percent(row["recall"]), f1, f"{row['support']:,}"]
        short.add_row(str(number), _plain(row["class"]), *cells)
        full.add_row(str(number), _plain(row["class"]), *cells, _plain(words))
    console.print(full if _fits(full, console) else short)
    counts = figures["confusion"]["counts"]
    table = _table("", "class", *(str(number) for number in range(1, len(counts) + 1)), left=(1,))
    for number, (name, row) in enumerate(zip(figures["confusion"]["classes"], counts, strict=True), 1):
        table.add_row(str(number), _plain(name), *(f"{count:,}" if count else "." for count in row))
    if len(counts) > MOST_CLASSES_PRINTED or not _fits(table, console):
        line(f"\nThe confusion matrix of {len(counts)} classes is in confusion.png and confusion.csv.")
        return
    line("\nConfusion matrix: true classes in rows, predicted classes in columns")
    console.print(table)


def _print_numbers(figures: Mapping[str, Any], console: Console, line: Any) -> None:
    r2 = "not defined, because all are the same" if figures["r2"] is None else f"{figures['r2']:.3f}"
    line(
        f"{figures['count']:,} recordings: mean absolute error {figures['mean_absolute_error']:.4g} (baseline, always the "
        f"mean: {figures['always_the_mean']['mean_absolute_error']:.4g}), root mean square error "
        f"{figures['root_mean_square_error']:.4g}, R² {r2}."
    )
    line("\nMean absolute error by share of each recording that is read")
    parts = figures["over_time"]["after_reading"]
    table = _table(*(f"{one['read']:.0%}" for one in parts))
    table.add_row(*(f"{one['mean_absolute_error']:.4g}" for one in parts))
    console.print(table)


def _table(*names: str, left: Sequence[int] = ()) -> Table:
    table = Table(box=None, pad_edge=False)
    for number, name in enumerate(names):
        table.add_column(name, justify="left" if number in left else "right", no_wrap=True)
    return table


def _fits(table: Table, console: Console) -> bool:
    return console.measure(table, options=console.options.update(width=10_000)).maximum <= console.width


def _plain(text: str) -> Text:
    return Text(text)  # no markup and no pictures of rich's


def percent(share: float | None) -> str:
    """Return a share as a percentage; - for none."""
    return "-" if share is None else f"{share:.1%}"
