"""The training core: trials that train as one computation, their parameters stacked on a leading trial axis.

`StackedTrials` owns everything that every kind of training shares: the optimiser, divergence, validation, the best parameters,
trials that retire, and snapshots. `group.Group` trains a layer under the paper's protocol, `fitting.NetworkTrials` a network on
the caller's own data.

E trials still running.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from mistrnn.training.optimizers import Optimizer, Tensors


@dataclass
class Record:
    """The history of one trial: its best validation so far, its divergence, its curve."""

    trial: int
    best_error: float = float("inf")
    best_step: int | None = None
    diverged_step: int | None = None
    stopped_step: int | None = None
    """The step at which it was given up as hopeless."""
    curve: list[tuple[int, float, float]] = field(default_factory=list)
    """(step, mean training loss per sequence since the point before, validation error)"""
    gradients: list[tuple[int, Tensor]] = field(default_factory=list)
    """(step, the norms of the gradients tau steps before the last loss, [T] by tau)"""

    @property
    def status(self) -> str:
        """How it ended."""
        if self.diverged_step is not None:
            return "diverged"
        return "ok" if self.stopped_step is None else "stopped"


class StackedTrials(ABC):
    """Some trials in training. A trial that diverges is taken out at the next validation and disturbs no other until then.

    Args:
        trials: their numbers.
        parameters: their initial parameters by name, stacked [E, ...]; updated in place.
        optimizer: updates them.
        buffers: tensors that follow the parameters without a gradient, such as running averages, stacked likewise.
    """

    total_steps: int
    validation_interval: int
    keep_last = False
    """Whether each validation replaces the best parameters."""
    stop_wanted = False
    """Set to ask all processes that train these trials to stop."""
    stop_agreed = False
    """Whether one of them asked before the last step: all know it, after the same step."""

    def __init__(
        self, trials: Sequence[int], parameters: Tensors, optimizer: Optimizer, buffers: Tensors | None = None
    ) -> None:
        self.records = [Record(trial) for trial in trials]
        self.running = list(range(len(trials)))
        """The record of each row of the stacked tensors."""
        self.step = 0
        self.parameters, self.optimizer, self.buffers = parameters, optimizer, buffers or {}
        self.device = next(iter(parameters.values())).device
        self.best: Tensors = {name: value.clone() for name, value in self._everything().items()}
        """Parameters and buffers of each trial's best validation, for all records."""
        self._loss_sum = torch.zeros(len(trials), dtype=torch.float64, device=self.device)
        self._diverged_at = torch.zeros(len(trials), dtype=torch.int64, device=self.device)  # 0: not yet
        self._loss_steps = 0

    @abstractmethod
    def _gradients_of_all(self) -> tuple[Tensors, Tensor, Tensor]:
        """Return the clipped gradients of the next batch, their norms [E] before clipping, and the losses [E]."""

    @abstractmethod
    def _learning_rate(self) -> Tensor:
        """Return the learning rates [E] of the current step, whose number is `self.step`, from 1."""

    @abstractmethod
    def _validation_errors(self) -> list[float]:
        """Return the validation error of each running trial."""

    @abstractmethod
    def measured(self) -> list[dict[str, Any]]:
        """Return for each record its validation and test error, the step of the best, and the number of weights."""

    @abstractmethod
    def _rows_changed(self) -> None:
        """Drop everything that was computed for the rows as they were."""

    def _everything(self) -> Tensors:
        return {**self.parameters, **self.buffers}

    @property
    def done(self) -> bool:
        """Whether all steps are taken, or no trial is left to take them."""
        return self.step >= self.total_steps or not self.running

    def advance(self) -> bool:
        """Take one optimisation step with every running trial; return whether it ended in a validation."""
        clipped, norms, losses = self._gradients_of_all()
        self.step += 1
        self.optimizer.update(self.parameters, clipped, self._learning_rate(), self.step)
        sums = torch.stack([value.flatten(1).sum(1) for value in self.parameters.values()]).sum(0)
        broken = ~(losses.isfinite() & norms.isfinite() & sums.isfinite())
        self._diverged_at = torch.where(broken & (self._diverged_at == 0), self.step, self._diverged_at)
        self._loss_sum += losses.double()
        self._loss_steps += 1
        self._after_step()
        if self.step % self.validation_interval and self.step < self.total_steps:
            return False
        self._validate()
        return True

    @abstractmethod
    def _after_step(self) -> None:
        """Finish a step, before its validation."""

    def _validate(self) -> None:
        """Remove diverged trials, validate the others, and keep the best parameters of each."""
        diverged = self._diverged_at.tolist()
        mean_losses = (self._loss_sum / self._loss_steps).tolist()
        for row, at in enumerate(diverged):
            if at:
                self.records[self.running[row]].diverged_step = at
        kept = [row for row, at in enumerate(diverged) if not at]
        self._keep(kept)
        if kept:
            errors = self._validation_errors()
            for row, (old_row, error) in enumerate(zip(kept, errors, strict=True)):
                record = self.records[self.running[row]]
                if not math.isfinite(error):
                    record.diverged_step = self.step
                    continue
                record.curve.append((self.step, mean_losses[old_row], error))
                if error < record.best_error or self.keep_last:
                    record.best_error, record.best_step = error, self.step
                    for name, value in self._everything().items():
                        self.best[name][self.running[row]] = value[row]
            self._keep([row for row, error in enumerate(errors) if math.isfinite(error)])
        self._loss_sum = torch.zeros_like(self._loss_sum)
        self._loss_steps = 0

    def retire(self, trials: Sequence[int]) -> None:
        """Take no more steps with some trials; their best validation stands."""
        if not trials:
            return
        for k in self.running:
            if self.records[k].trial in trials:
                self.records[k].stopped_step = self.step
        self._keep([row for row, k in enumerate(self.running) if self.records[k].stopped_step is None])

    def _keep(self, rows: list[int]) -> None:
        """Leave only some rows in the computation."""
        if len(rows) == len(self.running):
            return
        self.running = [self.running[row] for row in rows]
        index = torch.tensor(rows, dtype=torch.int64, device=self.device)
        self.parameters = {name: value[index] for name, value in self.parameters.items()}
        self.buffers = {name: value[index] for name, value in self.buffers.items()}
        self.optimizer.keep(index)
        self._loss_sum, self._diverged_at = self._loss_sum[index], self._diverged_at[index]
        self._rows_changed()

    def snapshot(self) -> tuple[Tensors, dict[str, Any]]:
        """Return all that changes, as tensors and as JSON."""
        tensors = {f"parameters/{name}": value for name, value in self.parameters.items()}
        tensors |= {f"buffers/{name}": value for name, value in self.buffers.items()}
        tensors |= {f"best/{name}": value for name, value in self.best.items()}
        for slot, values in self.optimizer.slots.items():
            tensors |= {f"{slot}/{name}": value for name, value in values.items()}
        tensors |= {"loss_sum": self._loss_sum, "diverged_at": self._diverged_at}
        points = [(k, *point) for k, record in enumerate(self.records) for point in record.curve]
        tensors["curves"] = torch.tensor(points, dtype=torch.float64).reshape(-1, 4)  # record, step, loss, error
        measured = [(k, *point) for k, record in enumerate(self.records) for point in record.gradients]
        tensors["gradients_at"] = torch.tensor([(k, step) for k, step, _ in measured]).reshape(-1, 2)  # record, step
        tensors["gradients"] = torch.stack([norms for *_, norms in measured]) if measured else torch.zeros(0)
        rest = {
            "step": self.step,
            "loss_steps": self._loss_steps,
            "running": self.running,
            "records": [
                {name: value for name, value in vars(record).items() if name not in ("curve", "gradients")}
                for record in self.records
            ],
        }
        return {name: value.contiguous().cpu() for name, value in tensors.items()}, rest

    def restore(self, tensors: Tensors, rest: dict[str, Any]) -> None:
        """Take up a snapshot of the same trials, before the first step."""
        self.optimizer.keep(torch.tensor(rest["running"], dtype=torch.int64, device=self.device))
        tensors = {name: value.to(self.device) for name, value in tensors.items()}
        self.parameters = {name: tensors[f"parameters/{name}"] for name in self.parameters}
        self.buffers = {name: tensors[f"buffers/{name}"] for name in self.buffers}
        self.best = {name: tensors[f"best/{name}"] for name in self.best}
        self.optimizer.slots = {
            slot: {name: tensors[f"{slot}/{name}"] for name in values} for slot, values in self.optimizer.slots.items()
        }
        self._loss_sum, self._diverged_at = tensors["loss_sum"], tensors["diverged_at"]
        self.step, self._loss_steps, self.running = rest["step"], rest["loss_steps"], rest["running"]
        self.records = [Record(**values) for values in rest["records"]]
        for k, step, loss, error in tensors["curves"].tolist():
            self.records[int(k)].curve.append((int(step), loss, error))
        if "gradients" in tensors:  # checkpoints of earlier versions have none
            for (k, step), norms in zip(tensors["gradients_at"].tolist(), tensors["gradients"].cpu(), strict=True):
                self.records[int(k)].gradients.append((int(step), norms))
        self._rows_changed()


def part_of(tensors: Tensors, rest: dict[str, Any], trials: Sequence[int]) -> tuple[Tensors, dict[str, Any]]:
    """Return the snapshot of some of the trials of a snapshot: they do not depend on each other."""
    kept = [k for k, record in enumerate(rest["records"]) if record["trial"] in trials]
    place = {k: n for n, k in enumerate(kept)}
    running = [row for row, k in enumerate(rest["running"]) if k in place]

    def of_kept(name: str) -> Tensor:
        """Return which lines of a table are about these trials; the number of a record comes first in a line."""
        return torch.tensor([int(k) in place for k in tensors[name][:, 0].tolist()], dtype=torch.bool)

    def part(name: str, value: Tensor) -> Tensor:
        if name in ("curves", "gradients_at"):
            lines = value[of_kept(name)].clone()
            lines[:, 0] = torch.tensor([place[int(k)] for k in lines[:, 0].tolist()], dtype=lines.dtype)
            return lines
        if name == "gradients":
            return value[of_kept("gradients_at")]
        return value[torch.tensor(kept if name.startswith("best/") else running, dtype=torch.int64)]

    return {name: part(name, value) for name, value in tensors.items()}, {
        **rest,
        "running": [place[rest["running"][row]] for row in running],
        "records": [rest["records"][k] for k in kept],
    }
