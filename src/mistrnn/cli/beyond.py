"""Experiments beyond the paper: regularised layers and other delays."""

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from mistrnn.cli._app import reproduce_app
from mistrnn.cli._flag_groups import with_flags
from mistrnn.cli._flags import Data
from mistrnn.cli._page import write_page
from mistrnn.cli.paper import (
    RowFlags,
    Rows,
    leave_if_crashed,
    print_table,
    run_asked,
    say_what_is_shortened,
    words_of_flag,
)
from mistrnn.paper import beyond
from mistrnn.paper.comparison import chosen_rows
from mistrnn.report import beyond_cells
from mistrnn.tasks import Task
from mistrnn.training import Study, study_task


@reproduce_app.command("beyond")
@with_flags
def beyond_command(
    asked: RowFlags,
    experiment: Annotated[str, typer.Option("--experiment", help=f"One of: {', '.join(beyond.HORIZONS)}.")],
    data: Data = None,
    out: Annotated[Path, typer.Option("--out", help="Where the studies and the page go.")] = Path("beyond"),
    rows: Rows = None,
) -> None:
    """Run MIST and LSTM with zoneout, recurrent dropout, layer norm and other delays, beside the same layers without."""
    chosen = chosen_rows(beyond.rows(experiment), words_of_flag(rows) or None)
    task = study_task(chosen[0].study, data)

    def task_of(study: Study) -> Task:
        return task if study.seed == chosen[0].study.seed else study_task(study, data)

    found = run_asked(chosen, out, task_of, asked)
    table = Table("row", "error %", "less that of plain", "solved", box=None, pad_edge=False)
    outcomes = beyond.outcomes(found)
    for outcome in outcomes:
        table.add_row(*beyond_cells(outcome)[:-1])
    print(f"\n{experiment}: test error of the top 10% by validation")
    print_table(table, [(outcome.row.label, outcome.verdict) for outcome in outcomes])
    say_what_is_shortened(chosen, asked)
    write_page([out], out / "report.html")
    leave_if_crashed(found)
