"""Analysis: gradient norms, the mixture of a MIST layer, paths."""

from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from mistrnn import MIST
from mistrnn.analysis import attention as mixture_of
from mistrnn.analysis import log10_path_counts, reach, shortest_path, shortest_paths, suggest_delays
from mistrnn.cli._app import app
from mistrnn.cli._flag_groups import with_flags
from mistrnn.cli._flags import BatchSize, Data, Device, Fresh, Out, numbers
from mistrnn.cli._progress import watched
from mistrnn.cli._study_flags import LayerFlags, TrainingFlags, study_from
from mistrnn.cli._task_flags import TaskFlags
from mistrnn.errors import UsageError
from mistrnn.files import folder_at
from mistrnn.layers import LAYERS
from mistrnn.report import Norms, draw_attention, draw_gradients, draw_weight_gradients, save_rows
from mistrnn.tasks import Task
from mistrnn.training import Recorded, run_study, study_task
from mistrnn.training.weight_signal import weight_norms


@app.command()
@with_flags
def gradients(
    task: TaskFlags,
    layer: LayerFlags,
    out: Out,
    by: Annotated[
        str,
        typer.Option(
            "--by",
            help="states: the norm of the gradient by the state; weights: where each gate's gradient comes from.",
        ),
    ] = "states",
    learning_rate: Annotated[float, typer.Option("--learning-rate", help="The learning rate.")] = 0.01,
    steps: Annotated[int, typer.Option("--steps", help="Optimisation steps.")] = 100,
    every: Annotated[int | None, typer.Option("--every", help="Steps between measurements.")] = None,
    batch_size: BatchSize = 100,
    device: Device = "auto",
    fresh: Fresh = False,
) -> None:
    """Show how much of the last step's gradient arrives tau steps before it, untrained and in training."""
    if by not in ("states", "weights"):
        raise UsageError(f"expected --by states or weights, got {by!r}.")
    if by == "weights" and every is not None:
        raise UsageError("expected no --every with --by weights, which measures before and after the training.")
    training = TrainingFlags(
        steps=steps, batch_size=batch_size, validate_every=steps, gradients_every=steps if every is None else every
    )
    study = study_from(task, layer, training, trials=1, learning_rate=learning_rate)
    folder = folder_at(out).place
    if not isinstance(folder, Path):
        raise UsageError(f"expected --out to be a folder on this machine, because pictures go there, too, got {out}.")
    data = study_task(study, task.data)
    with watched(study.total_steps, folder) as (show, stop):
        (row,) = run_study(
            study, folder, device=device, fresh=fresh, report=show.step, say=show.line, stop=stop, task=data
        )
    if row["status"] == "crashed":
        raise UsageError(f"the training crashed: {row['error']}")
    name = f"{LAYERS[layer.layer].__name__}, {layer.hidden} units, on {task.task}"
    show_weights = _show_weight_norms if by == "weights" else _show_state_norms
    for path in show_weights(Recorded(folder), data, row, name):
        print(path)


def _show_state_norms(recorded: Recorded, task: Task, row: dict[str, Any], title: str) -> list[Path]:
    """Print how far back the gradients by the state reach, and draw them."""
    found, lines = recorded.gradients(), []
    for step, norms in zip(found["step"].tolist(), found["norms"], strict=True):
        label = "untrained" if step == 0 else f"after {step} steps"
        if row["status"] == "diverged" and step >= row["steps"]:
            print(f"{label}: the training had diverged at step {row['steps']}; a lower --learning-rate may help")
            continue
        if not norms.isfinite().all():
            print(f"{label}: the gradients overflow; a lower --learning-rate may help")
            continue
        lines.append(Norms(label, f"step_{step}", norms.tolist()))
        print(f"{label}: at least 1% of the largest gradient norm arrives up to {reach(norms)} steps before the loss")
    return draw_gradients(lines, Path(recorded.folder) / "pictures", "gradients", title=title)


def _show_weight_norms(recorded: Recorded, task: Task, row: dict[str, Any], title: str) -> list[Path]:
    """Print how far back the components of each gate's gradient reach, and draw them."""
    study = recorded.study()
    models = {"untrained": study.model(task)}
    models["untrained"].load_state_dict(study.initial_parameters(0, task))
    if row["val_error"] is None:
        print("the training diverged; a lower --learning-rate may help")
    else:
        models[f"after {row['best_step']} steps"] = recorded.model(0, task.to("cpu"))
    found = {}
    for label, model in models.items():
        norms = weight_norms(model, task, study.batch_size)
        found[label] = {name.removeprefix("layer."): values.tolist() for name, values in norms.items()}
        for name, values in norms.items():
            share = f"at least 1% of the largest component up to {reach(values)} steps before the loss"
            print(f"{label}, {name.removeprefix('layer.')}: {share}")
    return draw_weight_gradients(found, Path(recorded.folder) / "pictures", "weight-gradients", title=title)


@app.command()
def attention(
    study: Annotated[str, typer.Argument(help="The folder or the address of a study with a MIST layer.")],
    out: Annotated[Path, typer.Option("--out", help="Where the picture and its data go.")],
    trial: Annotated[int | None, typer.Option("--trial", help="Which trial (default: the best by validation).")] = None,
    data: Data = None,
    examples: Annotated[int, typer.Option("--examples", help="Sequences of the test set to look at.")] = 100,
) -> None:
    """Show which past a trained MIST layer uses: its weights over delays, over time and over examples."""
    recorded = Recorded(study)
    settings = recorded.study()
    if settings.layer != "mist":
        raise UsageError(f"expected a study of a MIST layer, because others have no mixture, got {settings.layer}.")
    if examples < 1:
        raise UsageError(f"expected --examples >= 1, got {examples}.")
    task = study_task(settings, data)
    chosen = recorded.best_trial() if trial is None else trial
    layer = recorded.model(chosen, task).eval().layer
    assert isinstance(layer, MIST)
    index = torch.arange(min(examples, task.sizes["test"]))
    (inputs, _), lengths = task.batch("test", index, settings.dtype), task.lengths("test", index)
    mixture = mixture_of(layer, inputs, lengths=lengths)[-1]  # [T, B, D] of the last layer, zero in the padding
    shares = (mixture.double().sum((0, 1)) / lengths.sum()).tolist()
    for share, length in sorted(zip(shares, layer.delays, strict=True), reverse=True):
        print(f"delay {length:>5}: {share:6.1%}")
    title = f"MIST, {settings.hidden} units, on {settings.task}: trial {chosen}, {inputs.size(1)} test sequences"
    for path in draw_attention(mixture, layer.delays, out, title=title, lengths=lengths):
        print(path)


@app.command()
def paths(
    tau: Annotated[int, typer.Option("--tau", help="How many steps back.")],
    delays: Annotated[
        str | None,
        typer.Option("--delays", help="A list such as 1,2,4, or n for 1, 2, 4, … 2^(n-1).", show_default="8"),
    ] = None,
    suggest: Annotated[
        int | None, typer.Option("--suggest", help="Suggest so many delays that keep paths to tau short, instead.")
    ] = None,
    csv: Annotated[Path | None, typer.Option("--csv", help="Write the numbers for every tau up to this one.")] = None,
) -> None:
    """Show the shortest path over tau steps, and how many paths there are, for a set of delays."""
    if suggest is not None and delays is not None:
        raise UsageError("expected --delays or --suggest, not both: the delays to show are given or suggested.")
    try:
        if suggest is not None:
            own = suggest_delays(tau, suggest)
        else:
            chosen = numbers("delays", delays or "8")
            own = MIST(1, 1, delays=chosen, device="meta").delays
        found, counts = shortest_paths(own, tau), log10_path_counts(own, tau)
        path = shortest_path(own, tau)
    except MemoryError as error:
        raise UsageError(f"tau = {tau} and these delays take more memory than there is ({error}).") from error
    except ValueError as error:
        raise UsageError(str(error)) from error
    places = [f"t-{-time}" if time else "t" for time in path]
    print(f"delays: {', '.join(map(str, own))}")
    print(f"shortest path over {tau} steps: {_edges(len(path) - 1)}: {' -> '.join(_shortened(places))}")
    print(f"all paths over {tau} steps: {_count(float(counts[tau]))}")
    worst = int(found.lengths.argmax())
    unreachable = int((found.lengths < 0).sum())
    note = f"; {unreachable} of these steps cannot be reached" if unreachable else ""
    print(
        f"longest of the shortest paths up to {tau} steps: {_edges(int(found.lengths[worst]))}, at {worst} steps{note}"
    )
    print(f"with the one delay 1, as in a simple RNN or an LSTM: {_edges(tau)}")
    if csv is not None:
        rows = [
            {
                "tau": k,
                "edges": int(found.lengths[k]),
                "log10_paths": f"{counts[k]:.6g}",
                "last_delay": int(found.last_edge[k]),
            }
            for k in range(1, tau + 1)
        ]
        save_rows(csv, rows)
        print(csv)


def _edges(count: int) -> str:
    return f"{count} edge{'' if count == 1 else 's'}"


def _shortened(places: list[str], most: int = 12) -> list[str]:
    return places if len(places) <= most else [*places[: most // 2], "…", *places[-most // 2 :]]


def _count(log10: float) -> str:
    """Return a number of paths in words that stay short."""
    if log10 < 15:
        return f"{round(10**log10):,}"
    power = int(log10)
    return f"about {10 ** (log10 - power):.1f}e{power}"
