"""Records: studies kept in a repository, and documents that cite them."""

from pathlib import Path
from typing import Annotated

import typer

from mistrnn.cli._app import app
from mistrnn.report.records import keep_record
from mistrnn.report.records import verify as verify_records


@app.command()
def keep(
    study: Annotated[Path, typer.Argument(help="The folder of a finished study.")],
    out: Annotated[Path, typer.Option("--out", help="The folder of the record, a new one.")],
    dtype: Annotated[str, typer.Option("--dtype", help="How parameters are stored: float16 or float32.")] = "float16",
    top: Annotated[
        int | None, typer.Option("--top", help="Keep the parameters of so many trials (default: a tenth).")
    ] = None,
) -> None:
    """Copy a study as a small record: settings, trials, curves, and the parameters of its top trials."""
    for path in keep_record(study, out, dtype=dtype, top=top):
        print(path)


@app.command()
def verify(
    results: Annotated[Path, typer.Argument(help="A folder of records; README and docs stand beside it.")],
    data: Annotated[
        Path | None, typer.Option("--data", help="A folder that holds the prepared files of tasks, by the task's name.")
    ] = None,
    write: Annotated[bool, typer.Option("--write", help="Write the marked passages anew.")] = False,
) -> None:
    """Compute every marked number of README, docs and results again from the records, and test kept models again."""
    found = verify_records(results, data, write=write)
    for name in found.rewritten:
        print(f"{name}: written")
    for text in found.left_out:
        print(f"not recomputed: {text}")
    for text in found.mistakes:
        print(f"wrong: {text}")
    print(
        f"{found.studies} studies with {found.trials:,} trials, {found.models} kept models tested again, {found.passages} "
        f"passages of documents: {len(found.mistakes) or 'no'} mistake{'' if len(found.mistakes) == 1 else 's'}"
    )
    if found.mistakes:
        raise typer.Exit(1)
