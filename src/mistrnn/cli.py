"""The `mist` command: data, studies, single models, analysis, the paper's figures, the demo."""

import contextlib
import signal
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar
from rich.table import Table

from mistrnn import MIST, __version__
from mistrnn.analysis import attention as mixture_of
from mistrnn.analysis import log10_path_counts, reach, shortest_path, shortest_paths, suggest_delays
from mistrnn.demo import BATCH, DELAY, SOLVED, STEPS, TRIALS, run_demo
from mistrnn.errors import UsageError
from mistrnn.layers import LAYERS
from mistrnn.paper import figure1, figure2
from mistrnn.report import Norms, draw_attention, draw_figure1, draw_figure2, draw_gradients, save_rows
from mistrnn.tasks import TASKS, make_task
from mistrnn.tasks._mnist_files import MIRRORS, get
from mistrnn.training import Interrupted, Progress, Recorded, Study, run_study, study_task, summarise
from mistrnn.training.study import OPTIMIZERS, PRECISIONS, SCHEDULES

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Recurrent layers with direct connections from the distant past: data, studies, single models.",
)
data_app = typer.Typer(no_args_is_help=True, help="Get and check data sets.")
app.add_typer(data_app, name="data")
reproduce_app = typer.Typer(
    no_args_is_help=True, help="Make the paper's figures; what is there already is not run again."
)
app.add_typer(reproduce_app, name="reproduce")

console = Console()
LINE_EVERY_SECONDS = 10.0


def run() -> None:
    """Run the command; what the caller can mend is one message on standard error and exit status 2."""
    try:
        app()
    except UsageError as error:
        print(f"mist: {error}", file=sys.stderr)
        sys.exit(2)


def version(value: bool) -> None:
    """Print the version and leave."""
    if value:
        print(f"mistrnn {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Take the options before any command."""


TaskName = Annotated[str, typer.Argument(help=f"One of: {', '.join(TASKS)}.")]
LayerName = Annotated[str, typer.Option("--layer", help=f"One of: {', '.join(LAYERS)}.")]
Hidden = Annotated[int, typer.Option("--hidden", help="Hidden units.")]
Out = Annotated[Path, typer.Option("--out", help="The study's folder; the same command again resumes.")]
Steps = Annotated[int | None, typer.Option("--steps", help="Optimisation steps (default: the task's).")]
Seed = Annotated[int, typer.Option("--seed", help="Everything random follows from it.")]
Device = Annotated[str, typer.Option("--device", help="auto, cpu or cuda.")]
Data = Annotated[Path | None, typer.Option("--data", help="Folder with the task's files.")]
Delay = Annotated[int | None, typer.Option("--delay", help="copy: how long to remember, a multiple of 10.")]
Length = Annotated[int | None, typer.Option("--length", help="addition: the length of the sequences.")]
LastPixels = Annotated[int | None, typer.Option("--last-pixels", help="pmnist: read only the last so many pixels.")]
Delays = Annotated[str | None, typer.Option("--delays", help="mist, narx: a number or a list such as 1,2,4.")]
Periods = Annotated[str | None, typer.Option("--periods", help="clockwork: a number or a list such as 1,2,4.")]
NumLayers = Annotated[int, typer.Option("--num-layers", help="Layers on top of each other.")]
LayerNorm = Annotated[bool, typer.Option("--layer-norm", help="Normalise pre-activations.")]
BatchSize = Annotated[int, typer.Option("--batch-size", help="Sequences in a minibatch.")]
OptimizerName = Annotated[str, typer.Option("--optimizer", help=f"One of: {', '.join(OPTIMIZERS)}.")]
Schedule = Annotated[str, typer.Option("--schedule", help=f"One of: {', '.join(SCHEDULES)}.")]
WeightDecay = Annotated[float, typer.Option("--weight-decay", help="Weight decay.")]
Precision = Annotated[str, typer.Option("--precision", help=f"One of: {', '.join(PRECISIONS)}.")]
Truncate = Annotated[int | None, typer.Option("--truncate", help="Cut backpropagation through time after K steps.")]
ValidateEvery = Annotated[
    int | None, typer.Option("--validate-every", help="Steps between validations (default: the task's).")
]
GradientsEvery = Annotated[
    int | None, typer.Option("--gradients-every", help="Measure gradient norms at the start and after every N steps.")
]
GroupSize = Annotated[
    int | None, typer.Option("--group-size", help="Trials at once (default: as many as memory holds).")
]
Fresh = Annotated[bool, typer.Option("--fresh", help="Forget what is in the folder and start over.")]


@app.command()
def sweep(
    task: TaskName,
    out: Out,
    layer: LayerName = "mist",
    hidden: Hidden = 139,
    trials: Annotated[
        int, typer.Option("--trials", help="Models that differ in learning rate, weights and data order.")
    ] = 50,
    steps: Steps = None,
    seed: Seed = 0,
    device: Device = "auto",
    data: Data = None,
    delay: Delay = None,
    length: Length = None,
    last_pixels: LastPixels = None,
    delays: Delays = None,
    periods: Periods = None,
    num_layers: NumLayers = 1,
    layer_norm: LayerNorm = False,
    batch_size: BatchSize = 100,
    optimizer: OptimizerName = "sgd",
    schedule: Schedule = "constant",
    weight_decay: WeightDecay = 0.0,
    precision: Precision = "high",
    truncate: Truncate = None,
    validate_every: ValidateEvery = None,
    gradients_every: GradientsEvery = None,
    group_size: GroupSize = None,
    fresh: Fresh = False,
) -> None:
    """Train many trials with random learning rates as one computation, and report the top 10% by validation."""
    given = locals()  # the flags, by their names
    _run_and_print(_study(given), given)


@app.command()
def train(
    task: TaskName,
    out: Out,
    learning_rate: Annotated[float, typer.Option("--learning-rate", help="The learning rate.")],
    layer: LayerName = "mist",
    hidden: Hidden = 139,
    steps: Steps = None,
    seed: Seed = 0,
    device: Device = "auto",
    data: Data = None,
    delay: Delay = None,
    length: Length = None,
    last_pixels: LastPixels = None,
    delays: Delays = None,
    periods: Periods = None,
    num_layers: NumLayers = 1,
    layer_norm: LayerNorm = False,
    batch_size: BatchSize = 100,
    optimizer: OptimizerName = "sgd",
    schedule: Schedule = "constant",
    weight_decay: WeightDecay = 0.0,
    precision: Precision = "high",
    truncate: Truncate = None,
    validate_every: ValidateEvery = None,
    gradients_every: GradientsEvery = None,
    fresh: Fresh = False,
) -> None:
    """Train one model with one learning rate: a study of one trial."""
    given = {**locals(), "trials": 1, "group_size": None}
    _run_and_print(_study(given), given)


@app.command()
def gradients(
    task: TaskName,
    out: Out,
    learning_rate: Annotated[float, typer.Option("--learning-rate", help="The learning rate.")] = 0.01,
    layer: LayerName = "mist",
    hidden: Hidden = 139,
    steps: Annotated[int, typer.Option("--steps", help="Optimisation steps.")] = 100,
    gradients_every: Annotated[int | None, typer.Option("--every", help="Steps between measurements.")] = None,
    seed: Seed = 0,
    device: Device = "auto",
    data: Data = None,
    delay: Delay = None,
    length: Length = None,
    last_pixels: LastPixels = None,
    delays: Delays = None,
    periods: Periods = None,
    num_layers: NumLayers = 1,
    layer_norm: LayerNorm = False,
    batch_size: BatchSize = 100,
    fresh: Fresh = False,
) -> None:
    """Show how much of the last step's gradient arrives tau steps before it, untrained and in training."""
    every = gradients_every or steps
    given = {**locals(), "trials": 1, "group_size": None, "gradients_every": every, "validate_every": steps}
    study = _study(given)
    with _watched(study.total_steps, out) as (show, stop):
        run_study(
            study, out, device=device, fresh=fresh, report=show.step, say=show.line, stop=stop,
            task=study_task(study, data),
        )  # fmt: skip
    found = Recorded(out).gradients()
    lines = []
    for step, norms in zip(found["step"].tolist(), found["norms"], strict=True):
        lines.append(Norms("untrained" if step == 0 else f"after {step} steps", f"step_{step}", norms.tolist()))
        print(
            f"{lines[-1].label}: at least 1% of the largest gradient norm arrives up to {reach(norms)} steps before the loss"
        )
    name = f"{LAYERS[layer].__name__}, {hidden} units, on {task}"
    for path in draw_gradients(lines, out / "pictures", "gradients", title=name):
        print(path)


@app.command()
def attention(
    study: Annotated[Path, typer.Argument(help="The folder of a study with a MIST layer.")],
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
    inputs, _ = task.batch("test", torch.arange(min(examples, task.sizes["test"])), settings.dtype)
    mixture = mixture_of(layer, inputs)[-1]  # [T, B, D] of the last layer
    for share, length in sorted(zip(mixture.mean((0, 1)).tolist(), layer.delays, strict=True), reverse=True):
        print(f"delay {length:>5}: {share:6.1%}")
    title = f"MIST, {settings.hidden} units, on {settings.task}: trial {chosen}, {inputs.size(1)} test sequences"
    for path in draw_attention(mixture, layer.delays, out, title=title):
        print(path)


@app.command()
def paths(
    tau: Annotated[int, typer.Option("--tau", help="How many steps back.")],
    delays: Annotated[str, typer.Option("--delays", help="A list such as 1,2,4, or n for 1, 2, 4, … 2^(n-1).")] = "8",
    suggest: Annotated[
        int | None, typer.Option("--suggest", help="Suggest so many delays that keep paths to tau short, instead.")
    ] = None,
    csv: Annotated[Path | None, typer.Option("--csv", help="Write the numbers for every tau up to this one.")] = None,
) -> None:
    """Show the shortest path over tau steps, and how many paths there are, for a set of delays."""
    try:
        if suggest is not None:
            own = suggest_delays(tau, suggest)
        else:
            chosen = _numbers("delays", delays)
            own = tuple(chosen) if isinstance(chosen, list) else tuple(2**k for k in range(chosen))
        found, counts = shortest_paths(own, tau), log10_path_counts(own, tau)
        path = shortest_path(own, tau)
    except ValueError as error:
        raise UsageError(str(error)) from error
    places = [f"t-{-time}" if time else "t" for time in path]
    print(f"delays: {', '.join(map(str, own))}")
    print(f"shortest path over {tau} steps: {len(path) - 1} edges: {' -> '.join(_shortened(places))}")
    print(f"all paths over {tau} steps: {_count(float(counts[tau]))}")
    worst = int(found.lengths.argmax())
    unreachable = int((found.lengths < 0).sum())
    note = f"; {unreachable} of these steps cannot be reached" if unreachable else ""
    print(f"longest of the shortest paths up to {tau} steps: {found.lengths[worst]} edges, at {worst} steps{note}")
    print(f"with the one delay 1, as in a simple RNN or an LSTM: {tau} edges")
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


@reproduce_app.command("figure1")
def figure1_command(
    out: Annotated[Path, typer.Option("--out", help="Where the figure goes.")] = Path("figure1"),
    tau: Annotated[int, typer.Option("--tau", help="How many steps the shortest paths lead over.")] = figure1.TAU,
) -> None:
    """Draw direct connections and shortest paths in four architectures."""
    if tau < 1:
        raise UsageError(f"expected --tau >= 1, got {tau}.")
    for architecture in figure1.ARCHITECTURES:
        print(f"{architecture.name}: {len(architecture.path(tau)) - 1} edges over {tau} steps")
    for path in draw_figure1(out, tau):
        print(path)


@reproduce_app.command("figure2")
def figure2_command(
    data: Annotated[Path, typer.Option("--data", help="Folder with the files of MNIST.")],
    out: Annotated[Path, typer.Option("--out", help="Where the studies and the figure go.")] = Path("figure2"),
    steps: Annotated[int, typer.Option("--steps", help="Optimisation steps before the measurement.")] = figure2.STEPS,
    trials: Annotated[int, typer.Option("--trials", help="Models of each layer to average over.")] = figure2.TRIALS,
    seed: Seed = 0,
    device: Device = "auto",
) -> None:
    """Measure gradient norms against tau early in training on permuted MNIST: RNN, LSTM, Clockwork, MIST."""
    task = make_task("pmnist", seed=seed, data=data)
    with _watched(steps, out) as (show, stop):
        curves = figure2.run(
            out, task, steps=steps, trials=trials, seed=seed, device=device, say=show.line, report=show.step, stop=stop
        )
    print(figure2.sentence(curves, steps))
    if task.data_note:
        print(task.data_note)
    for path in draw_figure2(curves, out, steps):
        print(path)


@app.command()
def tasks() -> None:
    """List the tasks and their settings."""
    table = Table("task", "what it is", "settings", "steps", "validation every", box=None, pad_edge=False)
    for name, kind in TASKS.items():
        settings = "\n".join(f"--{key.replace('_', '-')}: {text}" for key, text in kind.settings.items())
        table.add_row(name, kind.summary, settings, f"{kind.default_steps:,}", str(kind.validation_interval))
    console.print(table)


@app.command()
def layers() -> None:
    """List the layers."""
    table = Table("layer", "what it is", box=None, pad_edge=False)
    for name, kind in LAYERS.items():
        table.add_row(name, (kind.__doc__ or "").split("\n")[0].split(";")[0])
    console.print(table)


@data_app.command()
def mnist(
    folder: Annotated[Path, typer.Option("--dir", help="Where the four files are or go.")],
    mirror: Annotated[list[str] | None, typer.Option("--mirror", help="Download from here instead.")] = None,
) -> None:
    """Get the four files of MNIST, or check those that are there."""
    get(folder, mirror or MIRRORS, say=print)


@app.command()
def demo(
    out: Annotated[Path, typer.Option("--out", help="Where the demo's studies and picture go.")] = Path("mist-demo"),
) -> None:
    """Compare MIST, LSTM, RNN and Clockwork on a copy problem: a few trials each, minutes on 2 CPU cores."""
    started = time.monotonic()
    with _watched(STEPS, out) as (show, stop):
        rows, picture = run_demo(out, say=show.line, report=show.step, stop=stop)
    table = Table(
        "layer", "units", "parameters", "best val error", "its test error", "its learning rate", "trials that solved it",
        box=None, pad_edge=False,
    )  # fmt: skip
    for row in rows:
        table.add_row(
            row["layer"],
            str(row["units"]),
            f"{row['parameters']:,}",
            f"{row['val_error']:.4f}",
            f"{row['test_error']:.4f}",
            f"{row['learning_rate']:.4f}",
            f"{row['solved']} of {TRIALS}",
        )
    console.print()
    console.print(table)
    print(
        f"\nCopy problem, delay {DELAY}: {TRIALS} trials of {STEPS} steps for each layer, batches of {BATCH}, learning rates "
        f"10^U(-4, 1), seed 0.\nAlways answering 'blank' has an error of {1 / 12:.4f}. Solved: below {SOLVED}. "
        f"Took {time.monotonic() - started:.0f} s.\nLearning curves: {picture}"
    )


def _study(given: dict[str, Any]) -> Study:
    """Return the study that the flags of `sweep` or `train` describe."""
    settings = {name: given[name] for name in ("delay", "length", "last_pixels") if given[name] is not None}
    return Study(
        **{field.name: given[field.name] for field in fields(Study) if field.name in given},
        task_settings=settings,
        layer_options=_layer_options(given),
    )


def _layer_options(given: dict[str, Any]) -> dict[str, Any]:
    chosen: dict[str, Any] = {}
    for name in ("delays", "periods"):
        if (text := given[name]) is not None:
            chosen[name] = _numbers(name, text)
    if given["num_layers"] != 1:
        chosen["num_layers"] = given["num_layers"]
    if given["layer_norm"]:
        chosen["layer_norm"] = True
    return chosen


def _numbers(name: str, text: str) -> int | list[int]:
    """Return the number or the list of numbers that a flag holds."""
    try:
        values = [int(part) for part in text.split(",")]
    except ValueError:
        raise UsageError(f"expected --{name} to be a number or a list such as 1,2,4, got {text!r}.") from None
    return values if "," in text else values[0]


def _shortened(places: list[str], most: int = 12) -> list[str]:
    return places if len(places) <= most else [*places[: most // 2], "…", *places[-most // 2 :]]


def _count(log10: float) -> str:
    """Return a number of paths in words that stay short."""
    if log10 < 15:
        return f"{round(10**log10):,}"
    power = int(log10)
    return f"about {10 ** (log10 - power):.1f}e{power}"


def _run_and_print(study: Study, given: dict[str, Any]) -> None:
    """Run a study, print its trials, and leave with status 1 if some crashed."""
    task = study_task(study, given["data"])
    with _watched(study.total_steps, given["out"]) as (show, stop):
        rows = run_study(
            study,
            given["out"],
            device=given["device"],
            fresh=given["fresh"],
            group_size=given["group_size"],
            report=show.step,
            say=show.line,
            stop=stop,
            task=task,
        )
    _print_trials(study, rows, task.data_note)
    if any(row["status"] == "crashed" for row in rows):
        raise typer.Exit(1)


@contextlib.contextmanager
def _watched(steps: int, out: Path) -> Iterator[tuple["_Shown", Callable[[], bool]]]:
    """Show progress, and leave with status 130 and one line when Ctrl-C has stopped the study."""
    with _stop_on_ctrl_c() as asked_to_stop, _show(steps) as show:
        try:
            yield show, lambda: bool(asked_to_stop)
        except Interrupted:
            show.line(f"stopped; saved in {out}. The same command goes on from here.")
            raise typer.Exit(130) from None


@contextlib.contextmanager
def _stop_on_ctrl_c() -> Iterator[list[int]]:
    """Collect Ctrl-C instead of breaking off in the middle of a step; a second one breaks off."""
    asked: list[int] = []

    def remember(number: int, _: object) -> None:
        asked.append(number)
        print("stopping after this step (once more breaks off at once)", file=sys.stderr, flush=True)
        signal.signal(signal.SIGINT, signal.default_int_handler)

    before = signal.signal(signal.SIGINT, remember)
    try:
        yield asked
    finally:
        signal.signal(signal.SIGINT, before)


class _Shown:
    """Progress on a terminal as a live bar, elsewhere as a line now and then."""

    def __init__(self, steps: int, bar: Bar | None) -> None:
        self._bar = bar
        self._task = bar.add_task("", total=steps, rate="", best="") if bar else None
        self._first: tuple[float, int] | None = None
        self._last_line = 0.0

    def step(self, progress: Progress) -> None:
        now = time.monotonic()
        if self._first is None or progress.step <= self._first[1]:
            self._first = (now, progress.step)  # a new group begins
            self._last_line = now
            if self._bar is not None and self._task is not None:
                self._bar.reset(self._task)
        elapsed, steps = now - self._first[0], progress.step - self._first[1]
        rate = steps / elapsed if elapsed > 0 else 0.0
        errors = " ".join(f"{error:.4f}" for error in progress.best_errors) or "none yet"
        trials = f"{progress.running} of {progress.trials} trials running, {progress.diverged} diverged"
        if progress.trials < progress.all_trials:
            trials += f", {progress.finished_trials} of {progress.all_trials} finished before"
        if self._bar is not None and self._task is not None:
            self._bar.update(
                self._task,
                completed=progress.step,
                description=trials,
                rate=f"{rate:.1f} steps/s",
                best=f"best errors {errors}",
            )
        elif now - self._last_line >= LINE_EVERY_SECONDS or progress.step == progress.steps:
            pace = f", {rate:.1f} steps/s, {(progress.steps - progress.step) / rate:.0f} s left" if rate else ""
            print(
                f"step {progress.step} of {progress.steps}{pace}; {trials}; best errors {errors}",
                flush=True,
            )
            self._last_line = now

    def line(self, text: str) -> None:
        if self._bar is not None:
            self._bar.console.print(text, highlight=False, markup=False)
        else:
            print(text, flush=True)


@contextlib.contextmanager
def _show(steps: int) -> Iterator[_Shown]:
    if not console.is_terminal:
        yield _Shown(steps, None)
        return
    columns = [
        BarColumn(bar_width=20),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeRemainingColumn(),
        TextColumn("{task.fields[best]}"),
        TextColumn("{task.description}"),
    ]
    with Bar(*columns, console=console) as bar:
        yield _Shown(steps, bar)


def _print_trials(study: Study, rows: list[dict[str, Any]], data_note: str) -> None:
    """Every trial, best first, and the top 10%."""
    summary = summarise(rows)
    table = Table(
        "trial", "learning rate", "val error", "test error", "best step", "status", "", box=None, pad_edge=False
    )
    for row in sorted(rows, key=lambda row: (row["val_error"] is None, row["val_error"] or 0.0, row["trial"])):
        status = row["status"] if row["status"] != "diverged" else f"diverged at step {row['steps']}"
        table.add_row(
            str(row["trial"]),
            f"{row['learning_rate']:.5f}",
            _number(row["val_error"]),
            _number(row["test_error"]),
            str(row["best_step"] or "-"),
            status,
            "top 10%" if row["trial"] in summary.top else "",
        )
    console.print(table)
    if summary.top:
        (error, error_spread), (rate, rate_spread) = summary.test_error, summary.log10_learning_rate
        name = TASKS[study.task].error_name
        print(
            f"{study.layer} {study.hidden} on {study.task}: test {name} {error:.4f} ± {error_spread:.4f}, "
            f"log10 learning rate {rate:.2f} ± {rate_spread:.2f} (top {len(summary.top)} of {summary.trials} trials, "
            f"{summary.diverged} diverged)"
        )
    if data_note:
        print(data_note)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"
