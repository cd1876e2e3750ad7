"""Trials that train as one computation: parameters stacked on a leading trial axis, one vmapped step for all.

E trials still running, T time, B batch, I input.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call, grad, vmap

from mistrnn.analysis.gradients import by_tau
from mistrnn.kernels.products import at_precision
from mistrnn.tasks import IGNORED, Split, Task
from mistrnn.training.backpropagation import recomputed, truncated
from mistrnn.training.capture import Captured
from mistrnn.training.optimizers import Optimizer, Tensors, clip, schedule_factor
from mistrnn.training.processes import ALONE, Processes
from mistrnn.training.study import Study

EVALUATION_BATCH = {"cpu": 100, "cuda": 500}
"""Sequences at a time in validation and test, at least, by device."""

MOST_RECORDINGS = 16
"""Shapes of a batch that are recorded on a GPU; each recording holds memory of its own."""


def evaluation_batch(study: Study, device: torch.device) -> int:
    """Return how many sequences are evaluated at a time."""
    if study.truncate or study.checkpoint_segments:  # whoever trains in pieces has long sequences and little memory
        return study.batch_size
    return max(study.batch_size, EVALUATION_BATCH[device.type])


@dataclass
class Record:
    """What is known of one trial: its best validation so far, its divergence, its curve."""

    trial: int
    best_error: float = float("inf")
    best_step: int | None = None
    diverged_step: int | None = None
    stopped_step: int | None = None
    """When it was given up as hopeless."""
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


class Group:
    """Some trials of a study. A trial that diverges is taken out at the next validation and disturbs nobody until then."""

    def __init__(
        self,
        study: Study,
        task: Task,
        trials: Sequence[int],
        device: torch.device,
        processes: Processes = ALONE,
    ) -> None:
        self.study, self.task, self.device, self._processes = study, task, device, processes
        self.stop_wanted = False
        """Set to ask all processes that train this group to stop."""
        self.stop_agreed = False
        """Whether one of them asked before the last step: all know it, after the same step."""
        self.records = [Record(trial) for trial in trials]
        self.running = list(range(len(trials)))
        """Which of the records each row of the stacked tensors belongs to."""
        self.step = 0
        self.model = study.model(task, device="meta")
        starts = [study.initial_parameters(trial, task) for trial in trials]
        self.parameters: Tensors = {name: torch.stack([s[name] for s in starts]).to(device) for name in starts[0]}
        self.best: Tensors = {name: value.clone() for name, value in self.parameters.items()}
        """The parameters of each trial's best validation, for all records."""
        self.optimizer = Optimizer(study.optimizer, self.parameters, study.weight_decay, study.momentum)
        self._rates = self._learning_rates()
        self._loss_sum = torch.zeros(len(trials), dtype=torch.float64, device=device)
        self._diverged_at = torch.zeros(len(trials), dtype=torch.int64, device=device)  # 0: not yet
        self._loss_steps = 0
        self._order: Tensor | None = None
        self._captured: dict[torch.Size, Captured] = {}
        """On a GPU, the gradients as recordings, one for each shape; they know the parameters by their place in memory."""
        self._epoch = -1

    @property
    def done(self) -> bool:
        """Whether all steps are taken, or no trial is left to take them."""
        return self.step >= self.study.total_steps or not self.running

    def advance(self) -> bool:
        """Take one optimisation step with every running trial; return whether it ended in a validation."""
        study = self.study
        if self.step == 0 and study.gradients_every:
            self._measure_gradients()
        clipped, norms, losses = self._gradients_of_all(self._next_index())
        self.step += 1
        rate = self._rates * schedule_factor(study.schedule, self.step, study.total_steps)
        self.optimizer.update(self.parameters, clipped, rate, self.step)
        sums = torch.stack([value.flatten(1).sum(1) for value in self.parameters.values()]).sum(0)
        broken = ~(losses.isfinite() & norms.isfinite() & sums.isfinite())
        self._diverged_at = torch.where(broken & (self._diverged_at == 0), self.step, self._diverged_at)
        self._loss_sum += losses.double() / study.batch_size
        self._loss_steps += 1
        if study.gradients_every and (self.step % study.gradients_every == 0 or self.step == study.total_steps):
            self._measure_gradients()
        if self.step % study.validation_interval and self.step < study.total_steps:
            return False
        self._validate()
        return True

    def evaluate(self, parameters: Tensors, split: Split) -> list[float]:
        """Return the error of each stacked model on a whole split; what bounds a step's memory does so here, too."""
        every_step = self.task.every_step
        total = torch.zeros(len(next(iter(parameters.values()))), dtype=torch.float64, device=self.device)  # [E]
        count = torch.zeros((), dtype=torch.float64, device=self.device)

        def errors(parameters: Tensors, state: Any, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Any]:
            scores, state = functional_call(self.model, parameters, (inputs, state))
            return self.task.errors(scores, targets), state

        with torch.no_grad(), self._arithmetic():
            batches = torch.split(self.task.order(split).to(self.device), evaluation_batch(self.study, self.device))
            for index in batches[self._processes.rank :: self._processes.count]:
                inputs, targets = self.task.batch(split, index, self.study.dtype)
                count += self.task.count(targets)
                chunk = self.study.steps_at_once(inputs.size(0))
                state: Any = None
                for begin in range(0, inputs.size(0), chunk):
                    wanted = targets[begin : begin + chunk] if every_step else targets
                    dims = (0, None if state is None else 0, None, None)
                    found, state = vmap(errors, in_dims=dims)(parameters, state, inputs[begin : begin + chunk], wanted)
                    if every_step or begin + chunk >= inputs.size(0):
                        total += found
        total, count = self._processes.total(total, count)
        values: list[float] = (total / count).tolist()
        return values

    def _gradients_of_all(self, index: Tensor) -> tuple[Tensors, Tensor, Tensor]:
        """Return each trial's clipped gradients on its batch [E, B], their norms [E] before, and the losses [E]."""
        everything, share = self._processes, None
        if everything.count > 1:
            share = everything.share(self.task.lengths("train", index))
            index = index.gather(1, share)
        inputs, targets = self._batch(index)  # [E, T, B, I], [E, (T,) B]
        counts = everything.total(vmap(self.task.count)(targets))[0]  # [E] targets in the whole batch
        batch = inputs, targets, counts, *self._dropout_masks(inputs, share)
        if everything.count == 1:
            found: tuple[Tensors, Tensor, Tensor] = self._captured_or_not(self._clipped_gradients, *batch)
            return found
        gradients, losses = self._captured_or_not(self._gradients, *batch)
        asked = losses.new_full((), float(self.stop_wanted))
        *sums, losses, asked = everything.total(*gradients.values(), losses, asked)
        self.stop_agreed = bool(asked > 0)
        return *clip(dict(zip(gradients, sums, strict=True))), losses

    def _batch(self, index: Tensor) -> tuple[Tensor, Tensor]:
        """Return inputs and targets; a share of a small batch may have no sequence."""
        if index.size(1):
            return self.task.batch("train", index, self.study.dtype)
        inputs, targets = self.task.batch("train", index.new_zeros(index.size(0), 1), self.study.dtype)
        return inputs[:, :, :0], targets[..., :0]

    def _dropout_masks(self, inputs: Tensor, share: Tensor | None) -> tuple[Tensor, ...]:
        """Return what each trial's readout reads, [E, T, B, H], if the study drops anything: of the whole batch, or a share."""
        study = self.study
        if not study.readout_dropout:
            return ()
        shape = inputs.size(1), study.batch_size, self.model.layer.output_size
        masks = [study.dropout_mask(self.records[k].trial, self.step, shape) for k in self.running]
        if share is not None:
            masks = [mask[:, places] for mask, places in zip(masks, share.cpu(), strict=True)]
        return (torch.stack(masks).to(self.device),)

    def _captured_or_not(self, compute: Callable[..., Any], *batch: Tensor) -> Any:
        """Compute; on a GPU as a recording, one for each shape."""
        shape = batch[0].shape
        if self.device.type != "cuda" or not shape.numel():
            return compute(*batch)
        if shape not in self._captured:
            if len(self._captured) >= MOST_RECORDINGS:
                return compute(*batch)
            self._captured[shape] = Captured(compute, *batch)
        return self._captured[shape](*batch)

    def _gradients(
        self, inputs: Tensor, targets: Tensor, counts: Tensor | None = None, dropout: Tensor | None = None
    ) -> tuple[Tensors, Tensor]:
        """Return each trial's gradients and loss [E], with as many steps in memory at once as the study says."""
        study = self.study
        backpropagate = recomputed if study.checkpoint_segments else truncated
        with self._arithmetic():
            return backpropagate(
                self.model,
                self.task,
                self.parameters,
                inputs,
                targets,
                dropout,
                length=study.steps_at_once(inputs.size(1)),
                counts=counts,
                sequences=study.batch_size,
            )

    def _clipped_gradients(self, *batch: Tensor) -> tuple[Tensors, Tensor, Tensor]:
        gradients, losses = self._gradients(*batch)
        return *clip(gradients), losses

    def _measure_gradients(self) -> None:
        """Note how much of the gradient of each sequence's last loss arrives at earlier states, on one validation batch."""
        index = self.task.order("val")[: self.study.batch_size].to(self.device)
        inputs, targets = self.task.batch("val", index, self.study.dtype)
        every_step = self.task.every_step
        ends = torch.full_like(index, inputs.size(0) - 1)
        if every_step:
            steps = torch.arange(inputs.size(0), device=self.device).unsqueeze(1)
            ends = torch.where(targets != IGNORED, steps, 0).amax(0)
            targets = targets.gather(0, ends.unsqueeze(0))  # [1, B], a sequence of one step
        layer = self.model.layer
        probe = inputs.new_zeros(()).expand(*inputs.shape[:2], layer.hidden_size)
        top = (layer.num_layers - 1) * layer.directions

        def loss(probe: Tensor, parameters: Tensors) -> Tensor:
            others = (probe.detach(),) * (len(layer.state_components) - 1)
            with layer.probed(lambda k, steps, batch: (probe, *others) if k == top else ()):
                scores, _ = functional_call(self.model, parameters, (inputs,))
            if every_step:
                # The last target's score alone: whether a loss passes over targets that are marked is its own affair.
                scores = scores.take_along_dim(ends.view(1, -1, 1), 0)
            return self.task.loss(scores, targets)

        def norms(parameters: Tensors) -> Tensor:  # [T, B]
            # In float64, because squares of float32's small numbers are zero long before the numbers are.
            derivative: Tensor = grad(loss)(probe, parameters)  # [T, B, H]
            found: Tensor = torch.linalg.vector_norm(derivative, dim=-1, dtype=torch.float64)
            return found

        with self._arithmetic():
            found = vmap(norms)(self.parameters)
        for k, values in zip(self.running, found, strict=True):
            self.records[k].gradients.append((self.step, by_tau(values, ends).cpu()))

    def _next_index(self) -> Tensor:  # [E, B]
        """Return the next minibatch of each running trial; an epoch's incomplete last one is left out."""
        size, batch = self.task.sizes["train"], self.study.batch_size
        per_epoch = max(1, size // batch)
        epoch, position = divmod(self.step, per_epoch)
        if self._order is None or epoch != self._epoch:
            rows = [self.study.data_order(self.records[k].trial, epoch, size) for k in self.running]
            self._order, self._epoch = torch.stack(rows).to(self.device), epoch
        return self._order[:, position * batch : (position + 1) * batch]

    def _validate(self) -> None:
        """Take out the diverged, validate the rest, and keep what is best."""
        diverged = self._diverged_at.tolist()
        mean_losses = (self._loss_sum / self._loss_steps).tolist()
        for row, at in enumerate(diverged):
            if at:
                self.records[self.running[row]].diverged_step = at
        kept = [row for row, at in enumerate(diverged) if not at]
        self._keep(kept)
        if kept:
            errors = self.evaluate(self.parameters, "val")
            for row, (old_row, error) in enumerate(zip(kept, errors, strict=True)):
                record = self.records[self.running[row]]
                if not math.isfinite(error):
                    record.diverged_step = self.step
                    continue
                record.curve.append((self.step, mean_losses[old_row], error))
                if error < record.best_error or self.study.keep == "last":
                    record.best_error, record.best_step = error, self.step
                    for name, value in self.parameters.items():
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
        self.optimizer.slots = {
            slot: {name: value[index] for name, value in values.items()}
            for slot, values in self.optimizer.slots.items()
        }
        self._loss_sum, self._diverged_at = self._loss_sum[index], self._diverged_at[index]
        self._rates, self._order, self._captured = self._learning_rates(), None, {}

    def _learning_rates(self) -> Tensor:  # [E]
        rates = [self.study.learning_rate_of(self.records[k].trial) for k in self.running]
        return torch.tensor(rates, dtype=torch.float64, device=self.device)

    @contextmanager
    def _arithmetic(self) -> Iterator[None]:
        """Compute as the study's precision says, and leave torch's own setting as it was."""
        study, kind = self.study, self.device.type
        with (
            at_precision("high" if study.precision == "high" else "highest") if kind == "cuda" else nullcontext(),
            torch.autocast(kind, dtype=torch.bfloat16, enabled=study.precision == "bf16"),
        ):
            yield

    def snapshot(self) -> tuple[Tensors, dict[str, Any]]:
        """Return all that changes, as tensors and as JSON."""
        tensors = {f"parameters/{name}": value for name, value in self.parameters.items()}
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
        """Take up a snapshot of the same trials."""
        tensors = {name: value.to(self.device) for name, value in tensors.items()}
        self.parameters = {name: tensors[f"parameters/{name}"] for name in self.parameters}
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
        self._rates, self._order, self._captured = self._learning_rates(), None, {}


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
