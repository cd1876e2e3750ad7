"""Progress of a fit: a bar on a terminal, lines elsewhere, TensorBoard, and callbacks."""

import contextlib
import time
from collections.abc import Iterator, Sequence
from os import PathLike

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from mistrnn.estimators._fitting import Epoch, Report
from mistrnn.training.tensorboard import Log

LINE_EVERY_SECONDS = 10.0


@contextlib.contextmanager
def followed(
    epochs: int | None, shown: bool, log_dir: str | PathLike[str] | None, others: Sequence[Report | None]
) -> Iterator[Report]:
    """Yield a report that calls all others after each epoch; it returns True if one of them ends the training."""
    with contextlib.ExitStack() as stack:
        reports: list[Report] = []
        if shown:
            reports.append(stack.enter_context(_shown(epochs)))
        if log_dir is not None:
            log = stack.enter_context(Log(log_dir))
            reports.append(lambda epoch: _log(log, epoch))
        reports.extend(other for other in others if other is not None)
        yield lambda epoch: any([report(epoch) for report in reports])  # noqa: C419 (all are told)


def _log(log: Log, epoch: Epoch) -> None:
    losses = {"loss/train": epoch.train_loss, "loss/validation": epoch.validation_loss}
    known = {name: value for name, value in losses.items() if value is not None}
    log.add({**known, "learning_rate": epoch.learning_rate}, epoch.epoch)


def _in_words(epoch: Epoch) -> str:
    if epoch.stage != "fit":
        best = "" if epoch.validation_loss is None else f", lowest validation loss {epoch.validation_loss:.4f}"
        return epoch.stage + best
    words = "train loss not finite" if epoch.train_loss is None else f"train loss {epoch.train_loss:.4f}"
    if epoch.validation_loss is not None:
        words += f", validation loss {epoch.validation_loss:.4f}, lowest in epoch {epoch.best_epoch}"
    return words


@contextlib.contextmanager
def _shown(epochs: int | None) -> Iterator[Report]:
    console = Console(stderr=True)
    if not console.is_terminal:
        printed, newest = time.monotonic(), None  # when, and what has not been

        def line(epoch: Epoch) -> None:
            nonlocal printed, newest
            newest = epoch
            if time.monotonic() - printed >= LINE_EVERY_SECONDS:
                printed, newest = time.monotonic(), None
                _print(console, epoch)

        yield line
        if newest is not None:
            _print(console, newest)
        return
    columns = [BarColumn(bar_width=20), MofNCompleteColumn(), TimeRemainingColumn(), TextColumn("{task.description}")]
    with Progress(*columns, console=console) as bar:
        task = bar.add_task("", total=epochs)

        def advance(epoch: Epoch) -> None:
            bar.update(task, total=epoch.epochs, completed=epoch.epoch, description=_in_words(epoch))

        yield advance


def _print(console: Console, epoch: Epoch) -> None:
    console.print(f"epoch {epoch.epoch} of {epoch.epochs}: {_in_words(epoch)}", highlight=False, soft_wrap=True)
