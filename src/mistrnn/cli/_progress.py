"""Progress of a study: a live bar on a terminal, lines elsewhere; Ctrl-C stops after the step and saves."""

import contextlib
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import typer
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from mistrnn.cli._app import console
from mistrnn.training import Interrupted, Progress
from mistrnn.training.processes import process_rank

LINE_EVERY_SECONDS = 10.0


@contextlib.contextmanager
def watched(steps: int, out: Path | str) -> Iterator[tuple["Shown", Callable[[], bool]]]:
    """Show progress, and leave with status 130 and one line when Ctrl-C has stopped the study."""
    with stop_on_ctrl_c("step", signal.SIGTERM) as asked_to_stop, _show(steps) as show:
        try:
            yield show, lambda: bool(asked_to_stop)
        except Interrupted:
            if process_rank() == 0:
                show.line(f"stopped; saved in {out}. The same command goes on from here.")
            raise typer.Exit(130) from None


@contextlib.contextmanager
def stopped_with_state(unit: str, out: Path | str) -> Iterator[list[int]]:
    """Collect Ctrl-C and SIGTERM; when they have stopped a search, say where it is saved and leave with status 130."""
    with stop_on_ctrl_c(unit, signal.SIGTERM) as asked_to_stop:
        try:
            yield asked_to_stop
        except Interrupted:
            print(f"stopped; saved in {out}; the same command goes on from here.", flush=True)
            raise typer.Exit(130) from None


@contextlib.contextmanager
def stop_on_ctrl_c(unit: str, *others: signal.Signals) -> Iterator[list[int]]:
    """Collect Ctrl-C, and other signals, instead of breaking off in the middle of a step or an epoch; a second breaks off."""
    asked: list[int] = []

    def remember(number: int, _: object) -> None:
        asked.append(number)
        print(f"stopping after this {unit} (once more breaks off at once)", file=sys.stderr, flush=True)
        for one, usual in before.items():
            signal.signal(one, signal.default_int_handler if one == signal.SIGINT else usual)

    before = {one: signal.signal(one, remember) for one in (signal.SIGINT, *others)}
    try:
        yield asked
    finally:
        for one, usual in before.items():
            signal.signal(one, usual)


class Shown:
    """Progress on a terminal as a live bar, elsewhere as a line now and then."""

    def __init__(self, steps: int, bar: Bar | None) -> None:
        self._bar = bar
        self._task = bar.add_task("", total=steps, rate="", best="") if bar else None
        self._first: tuple[float, int] | None = None
        self._latest = 0
        self._last_line = 0.0

    def step(self, progress: Progress) -> None:
        now = time.monotonic()
        if self._first is None or progress.step < self._latest:
            self._first = (now, progress.step)  # a new study begins, or a lost group begins again
            self._last_line = now
            if self._bar is not None and self._task is not None:
                self._bar.reset(self._task)
        self._latest = progress.step
        elapsed, steps = now - self._first[0], progress.step - self._first[1]
        rate = steps / elapsed if elapsed > 0 else 0.0
        errors = " ".join(f"{error:.4f}" for error in progress.best_errors) or "none yet"
        trials = f"{progress.running} of {progress.trials} trials running, {progress.diverged} diverged"
        if progress.groups > 1:
            trials += f" in {progress.groups} groups"
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
def _show(steps: int) -> Iterator[Shown]:
    if not console.is_terminal or process_rank() > 0:
        yield Shown(steps, None)
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
        yield Shown(steps, bar)
