"""The expressions of `recomputed` marks: words, `name=value` options, and paths relative to the folder of results.

studies GLOB … columns=A,B,…     a table with a row for each study
trials GLOB …                    a table with a row for each trial
verdicts TABLE FOLDER            a table's rows beside the published ones, with interval and verdict (table1)
outcomes FOLDER                  figure 3: solving trials with intervals, and the verdict
reaches FOLDER                   figure 2: how far back the gradients of each layer reach
users FOLDER                     table 2: the frame error by user
kinds TABLE FOLDER KEYS          how many of these rows have which verdict
published ROW                    the published error in percent
estimate ROW FOLDER              the pooled test error of a row in percent: value or interval (`part=`)
solved FOLDER                    the trials of one study that solved the copy problem
best FOLDER                      the lowest validation error of one study in percent
lowest FILE COLUMN NAME=VALUE    the lowest value of a CSV file's column, in the rows with this value in another column
costs UNITS                      multiply-adds of a step of every layer, with the units and the parameters of an LSTM
cell FILE ROW COLUMN             a cell of a table in another document, by the beginnings of its row and column
"""

import csv
import shlex
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

from mistrnn.analysis import step_cost
from mistrnn.errors import UsageError
from mistrnn.layers import LAYERS, count_parameters, match_parameters
from mistrnn.paper import figure2, figure3, table1, table2
from mistrnn.paper.comparison import Comparison, Row, StudyResults
from mistrnn.report.collected import Found, collect
from mistrnn.report.records.columns import COLUMNS
from mistrnn.report.texts import estimate_text, percent, share_text
from mistrnn.training import Recorded, plus_minus

TAUS = (100, 200, 400, 783)


def evaluate(expression: str, results: Path) -> str:
    """Return what an expression says about the records in a folder."""
    try:
        words = shlex.split(expression)
    except ValueError as error:
        raise UsageError(f"{expression!r}: expected words ({error}).") from error
    options = dict(word.split("=", 1) for word in words[1:] if "=" in word)
    places = [word for word in words[1:] if "=" not in word]
    function = EXPRESSIONS.get(words[0]) if words else None
    if function is None:
        raise UsageError(f"{expression!r}: expected an expression that begins with one of {', '.join(EXPRESSIONS)}.")
    try:
        return function(results, *places, **options)
    except TypeError as error:
        raise UsageError(f"{expression!r}: {error}") from error


def table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table in Markdown.

    >>> print(table(["a", "b"], [["1", "2"]]))
    | a | b |
    | --- | --- |
    | 1 | 2 |
    """
    lines = [headings, ["---"] * len(headings), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def studies(results: Path, *globs: str, columns: str) -> str:
    """Return a table of studies."""
    chosen = [COLUMNS[name] for name in _known(columns.split(","), COLUMNS, "columns")]
    found = _studies(results, globs)
    return table([column.heading for column in chosen], [[column.cell(one) for column in chosen] for one in found])


def trials(results: Path, *globs: str) -> str:
    """Return a table of all trials."""
    rows = []
    for found in _studies(results, globs):
        for trial in found.trials:
            errors = [percent(trial["val_error"]), percent(trial["test_error"])]
            layer, units = LAYERS[found.study.layer].__name__, str(found.study.hidden)
            number, rate, best = trial["trial"], f"{trial['learning_rate']:.5f}", str(trial["best_step"] or "-")
            rows.append([layer, units, str(number), rate, *errors, best, trial["status"]])
    return table(
        ["layer", "units", "trial", "learning rate", "validation error %", "test error %", "best step", "status"], rows
    )


def verdicts(results: Path, name: str, folder: str) -> str:
    """Return the rows of a table beside the published ones."""
    rows = []
    for row, result in _comparisons(results, name, folder):
        theirs = row.published
        rate = result.log10_learning_rate
        rows.append(
            [
                row.label,
                " + ".join(f"{one.finished} of {one.study.trials}" for one in result.seeds),
                estimate_text(result.ours),
                percent(theirs.error, theirs.deviation),
                plus_minus(*rate, 2) if rate else "-",
                plus_minus(*theirs.log10_learning_rate, 2) if theirs.log10_learning_rate else "-",
                result.verdict,
            ]
        )
    return table(["row", "trials", "test error %", "published", "log10 learning rate", "published", "verdict"], rows)


def outcomes(results: Path, folder: str) -> str:
    """Return figure 3's rows: who solves the problem, and whether the paper says so."""
    found = _studies(results, [f"{folder}/copy-*-seed-*"])
    rows = []
    for row in (*figure3.rows(), *figure3.rows(control=True)):
        own = [one.results for one in found if row.owns(one.study, one.row)]
        if own:
            outcome = figure3.outcome(row, own)
            rows.append(
                [
                    row.label,
                    percent(outcome.best_error),
                    share_text(outcome.once),
                    share_text(outcome.at_the_end),
                    outcome.verdict,
                ]
            )
    return table(["row", "best validation error %", "solved once", "solved at the end", "verdict"], rows)


def reaches(results: Path, folder: str) -> str:
    """Return figure 2's rows: median and quartiles of the reach by step, and norms far back after training."""
    rows, steps = [], set()
    curves = []
    for row in figure2.ROWS:
        if (results / folder / row.layer / "study.json").exists():
            curve = figure2.read(row, Recorded(results / folder / row.layer))
            if curve is not None:
                curves.append(curve)
                steps |= set(curve.by_step)
    if not curves:
        raise UsageError(f"{folder}: expected studies with gradient norms.")
    for curve in curves:
        cells = []
        for step in sorted(steps):
            spread = curve.reach(step=step) if step in curve.by_step else None
            cells.append("-" if spread is None else f"{spread.median:.0f} [{spread.low:.0f}, {spread.high:.0f}]")
        median = curve.median
        norms = ", ".join(f"{float(median[tau] / median.max()):.1e}" for tau in TAUS if tau < len(median))
        rows.append([curve.row.label, str(len(curve.norms)), *cells, norms])
    headings = ["untrained" if step == 0 else f"after {step} steps" for step in sorted(steps)]
    return table(["layer", "trials", *headings, f"norm at tau = {', '.join(map(str, TAUS))} over the largest"], rows)


def users(results: Path, folder: str) -> str:
    """Return table 2's rows: the frame error over users, and of each."""
    rows = []
    for layer, (label, _) in table2.ROWS.items():
        found = _studies(results, [f"{folder}/{layer}-user-*"], needed=False)
        if found:
            errors = [trial["test_error"] for one in found for trial in one.trials]
            mean = percent(*table2.Result(label, tuple(errors), ()).frame_error)
            parameters = f"{found[0].trials[0]['parameters']:,}"
            names = ", ".join(str(one.study.task_settings["user"]) for one in found)
            rows.append(
                [f"{label} {found[0].study.hidden}", parameters, mean, f"{names}: {', '.join(map(percent, errors))}"]
            )
    return table(["layer", "parameters", "frame error %", "by user"], rows)


def estimate(results: Path, name: str, folder: str, part: str = "value") -> str:
    """Return the estimate of one row, or its interval."""
    found = {row.key: result for row, result in _comparisons(results, name.split("/")[0], folder)}
    ours = found[_known([name.split("/")[-1]], found, "rows")[0]].ours
    if ours is None or (part != "value" and ours.low is None):
        raise UsageError(f"{name}: expected trials enough for an estimate.")
    return {"value": percent(ours.value), "interval": f"{percent(ours.low)} to {percent(ours.high)}"}[part]


def kinds(results: Path, name: str, folder: str, keys: str) -> str:
    """Return how many of some rows have which verdict."""
    found = {row.key: result.kind for row, result in _comparisons(results, name, folder)}
    counts = Counter(found[key] for key in _known(keys.split(","), found, "rows"))
    return ", ".join(f"{count} {kind}" for kind, count in counts.items())


def published(results: Path, name: str) -> str:
    """Return the published error of a row of table 1."""
    rows = {row.name: row for row in (*table1.ROWS, *table1.CONTROL_ROWS)}
    theirs = rows[_known([name], rows, "rows")[0]].published
    return percent(theirs.error, theirs.deviation)


def solved(results: Path, folder: str) -> str:
    """Return how many trials of a study solved the copy problem, and the interval."""
    return share_text(figure3.solved_shares([one.results for one in _studies(results, [folder])])[0])


def best(results: Path, folder: str) -> str:
    """Return the lowest validation error of a study."""
    (found,) = _studies(results, [folder])
    return percent(min(trial["val_error"] for trial in found.trials if trial["val_error"] is not None))


def lowest(results: Path, file: str, column: str, **only: str) -> str:
    """Return the lowest number in a column of a CSV file, with the digits that stand there."""
    try:
        with open(results / file, encoding="utf-8", newline="") as lines:
            rows = [row for row in csv.DictReader(lines) if all(row.get(name) == only[name] for name in only)]
        return min((row[column] for row in rows), key=float)
    except (OSError, KeyError, ValueError) as error:
        raise UsageError(f"{file}: expected rows with numbers in {column!r} ({error}).") from error


def costs(results: Path, units: str) -> str:
    """Return the multiply-adds of a step of every layer with one input, beside an LSTM with so many units."""
    hidden = int(units)
    budget = count_parameters("lstm", hidden, 1, 10)
    lstm = step_cost(LAYERS["lstm"](1, hidden)).multiply_adds
    rows = []
    for name, kind in LAYERS.items():
        step = kind.hidden_size_step()
        cells = []
        for own in (-(-hidden // step) * step, hidden if name == "lstm" else match_parameters(name, budget, 1, 10)):
            cost = step_cost(kind(1, own))
            cells += [str(own), f"{cost.multiply_adds:,}", f"{cost.multiply_adds / lstm:.2f}", f"{cost.elementwise:,}"]
        rows.append([kind.__name__, *cells])
    headings = ["units", "multiply-adds", "to LSTM", "other"]
    return table(["layer", *headings, *headings], rows)


def cell(results: Path, file: str, row: str, column: str) -> str:
    """Return a cell of another document, which stands in the folder above the results or below it."""
    path = results.absolute().parent / file
    if not path.is_file():
        raise UsageError(f"{file}: expected a document.")
    headings: list[str] = []
    for line in path.read_text(encoding="utf-8").splitlines():
        cells = [text.strip() for text in line.strip().strip("|").split("|")] if line.startswith("|") else []
        if not cells:
            headings = []
        elif not headings:
            headings = cells
        elif cells[0].startswith(row):
            places = [k for k, heading in enumerate(headings) if heading.startswith(column)]
            if places:
                return cells[places[0]]
    raise UsageError(f"{file}: expected a table with a row {row!r} and a column {column!r}.")


EXPRESSIONS: dict[str, Callable[..., str]] = {
    function.__name__: function
    for function in (
        studies,
        trials,
        verdicts,
        outcomes,
        reaches,
        users,
        kinds,
        published,
        estimate,
        solved,
        best,
        lowest,
        costs,
        cell,
    )
}


def _known(names: Sequence[str], known: Collection[str], what: str) -> list[str]:
    for name in names:
        if name not in known:
            raise UsageError(f"expected {what} among {', '.join(known)}, got {name!r}.")
    return list(names)


def _studies(results: Path, globs: Sequence[str], *, needed: bool = True) -> list[Found]:
    """Return the studies in the folders that match, in the order of the patterns."""
    folders = [place for pattern in globs for place in sorted(results.glob(pattern)) if (place / "study.json").exists()]
    if not folders and needed:
        raise UsageError(f"expected studies in {', '.join(globs)}, got none.")
    found = [collect([folder]) for folder in folders]
    for one in found:
        if one.problems:
            raise UsageError(one.problems[0])
    return [one.studies[0] for one in found]


def _comparisons(results: Path, name: str, folder: str) -> list[tuple[Row, Comparison]]:
    """Return the rows of a table that have studies in a folder, controls included."""
    if name != "table1":
        raise UsageError(f"expected table1, because the others have run on stand-ins alone, got {name!r}.")
    found = _studies(results, [f"{folder}/*"])
    by_row: list[tuple[Row, list[StudyResults]]] = [
        (row, [one.results for one in found if row.owns(one.study, one.row)])
        for row in (*table1.ROWS, *table1.CONTROL_ROWS)
    ]
    return [(row, table1.comparison(row, own)) for row, own in by_row if own]
