"""Table 2: one user held out at a time."""

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from mistrnn.cli._app import reproduce_app
from mistrnn.cli._flags import Device, Fresh, Seed
from mistrnn.cli._page import write_page
from mistrnn.cli._progress import watched
from mistrnn.cli.paper import Prepared, StandIn, draw_predictions, print_table, words_of_flag
from mistrnn.errors import UsageError
from mistrnn.paper import table2
from mistrnn.report import percent
from mistrnn.tasks import RecordingTask, make_task
from mistrnn.training import Recorded, run_study


@reproduce_app.command("table2")
def table2_command(
    data: Prepared,
    stand_in: StandIn = False,
    out: Annotated[Path, typer.Option("--out", help="Where the studies and the page go.")] = Path("table2"),
    layers: Annotated[str | None, typer.Option("--rows", help="Only these layers, such as mist,lstm.")] = None,
    steps: Annotated[int | None, typer.Option("--steps", help="Fewer steps than 80 epochs.")] = None,
    validation_users: Annotated[
        str | None, typer.Option("--validation-users", help="Users who are never held out (in 2016: 03,04,10,30).")
    ] = None,
    forget_bias: Annotated[
        float | None, typer.Option("--forget-bias", help="Initial forget bias (default: 1; in 2016: 0).")
    ] = None,
    wrap: Annotated[bool, typer.Option("--wrap", help="Repeat short recordings of a batch, as in 2016.")] = False,
    sweeps: Annotated[
        int | None, typer.Option("--sweeps", help="Batches to train on instead of 80 epochs (in 2016: 600).", min=1)
    ] = None,
    seed: Seed = 0,
    device: Device = "auto",
    fresh: Fresh = False,
) -> None:
    """Run table 2 (MISTIC-SL), or with --stand-in JIGSAWS or Gesture Phase Segmentation, one user held out at a time."""
    wanted = words_of_flag(layers) or list(table2.ROWS)
    unknown = [name for name in wanted if name not in table2.ROWS]
    if unknown:
        raise UsageError(f"expected --rows among {', '.join(table2.ROWS)}, got {', '.join(unknown)}.")
    first = make_task("surgical", data=data)
    assert isinstance(first, RecordingTask)
    if (first.data_name == table2.DATA) == stand_in:
        raise UsageError(
            f"{data}: the recordings are {first.data_name}; --stand-in is for data other than {table2.DATA}, and only for it."
        )
    options = table2.Options(tuple(words_of_flag(validation_users)), forget_bias, wrap, sweeps)
    users = options.held_out(first.groups)
    table_name = f"table2{'' if options == table2.PAPER_OPTIONS else '-options'}{'-stand-in' if stand_in else ''}"
    results = []
    for layer in wanted:
        errors, distances = [], []
        for user in users:
            task = make_task("surgical", {"user": user, "wrap": wrap}, data=data)
            assert isinstance(task, RecordingTask)
            study = table2.study(layer, user, task, seed=seed, steps=steps, options=options)
            place = out / f"{layer}-user-{user}"
            with watched(study.total_steps, out) as (show, stop):
                show.line(f"{table2.ROWS[layer][0]}, {study.hidden} units, user {user} held out")
                (row,) = run_study(
                    study,
                    place,
                    row=f"{table_name}/{layer}",
                    device=device,
                    fresh=fresh,
                    task=task,
                    say=show.line,
                    report=show.step,
                    stop=stop,
                )
            if row["status"] != "ok":
                raise UsageError(f"{place}: the trial has {row['status']}, and its last parameters are wanted.")
            errors.append(row["test_error"])
            distances.append(table2.mean_edit_distance(Recorded(place).model(0, task.to("cpu")).eval(), task))
        label = f"{table2.ROWS[layer][0]}, {study.hidden} units"
        results.append((layer, table2.Result(label, tuple(errors), tuple(distances))))
    title = f"{first.data_name}, standing in for {table2.DATA}" if stand_in else table2.TITLE
    names = ["row", "frame error %", "segment edit distance %"] + ([] if stand_in else ["published"])
    table = Table(*names, box=None, pad_edge=False)
    verdicts = []
    for layer, result in results:
        cells = [result.label, percent(*result.frame_error), percent(*result.edit_distance)]
        if not stand_in:
            published = table2.ROWS[layer][1]
            cells.append(percent(published.error, published.deviation))
            verdicts.append((result.label, table2.verdict(layer, result, shortened=steps is not None, options=options)))
        table.add_row(*cells)
    print(f"\n{title}: mean ± deviation over {len(users)} users, each held out once")
    print_table(table, verdicts)
    if steps is not None:
        print(f"Shortened: {steps:,} steps instead of {table2.EPOCHS} epochs.")
    best, result = min(results, key=lambda one: one[1].frame_error[0])
    shown = make_task("surgical", {"user": users[0]}, data=data)
    assert isinstance(shown, RecordingTask)
    model = Recorded(out / f"{best}-user-{users[0]}").model(0, shown).eval()
    draw_predictions(model, shown, out, f"{result.label}, user {users[0]} of {first.data_name} held out")
    write_page([out], out / "report.html")
