"""Trials that train as one computation: parameters stacked on a leading trial axis, one vmapped step for all.

E trials still running, T time, B batch, I input.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call, grad, vmap

from mistrnn.analysis.gradients import by_tau
from mistrnn.errors import UsageError
from mistrnn.kernels.cuda.matmul_precision import at_precision
from mistrnn.tasks import IGNORED, Split, Task
from mistrnn.training.backpropagation import recomputed, truncated
from mistrnn.training.capture import Captured
from mistrnn.training.optimizers import Optimizer, Tensors, clip, schedule_factor
from mistrnn.training.processes import ALONE, Processes
from mistrnn.training.random_masks import TrialMasks
from mistrnn.training.stacked import StackedTrials
from mistrnn.training.study import Study

EVALUATION_BATCH = {"cpu": 100, "cuda": 500}
"""Sequences at a time in validation and test, at least, by device."""

MOST_RECORDINGS = 16
"""Shapes of a batch that are recorded on a GPU; each recording holds memory of its own."""


def evaluation_batch(study: Study, device: torch.device) -> int:
    """Return how many sequences are evaluated at a time."""
    if study.truncate or study.checkpoint_segments:  # pieces are for long sequences and little memory
        return study.batch_size
    return max(study.batch_size, EVALUATION_BATCH[device.type])


class Group(StackedTrials):
    """Some trials of a study under the paper's protocol."""

    def __init__(
        self,
        study: Study,
        task: Task,
        trials: Sequence[int],
        device: torch.device,
        processes: Processes = ALONE,
    ) -> None:
        self.study, self.task, self.device, self._processes = study, task, device, processes
        self.model = study.model(task, device="meta")
        self._draws = self.model.mask_draws()
        if processes.count > 1 and task.resets("train", torch.zeros(1, 1, dtype=torch.int64)) is not None:
            raise UsageError("expected one process with wrapped sequences, whose length is that of the whole batch.")
        self.total_steps, self.validation_interval = study.total_steps, study.validation_interval
        self.keep_last = study.keep == "last"
        starts = [study.initial_parameters(trial, task) for trial in trials]
        parameters = {name: torch.stack([s[name] for s in starts]).to(device) for name in starts[0]}
        super().__init__(trials, parameters, Optimizer(study.optimizer, parameters, study.weight_decay, study.momentum))
        self._rates = self._learning_rates()
        self._order: Tensor | None = None
        self._captured: dict[torch.Size, Captured] = {}
        """On a GPU, the gradients as CUDA graphs, one for each shape; they hold the addresses of the parameters."""
        self._epoch = -1

    def advance(self) -> bool:
        """Take one optimisation step with every running trial; return whether it ended in a validation."""
        if self.step == 0 and self.study.gradients_every:
            self._measure_gradients()
        return super().advance()

    def _after_step(self) -> None:
        every = self.study.gradients_every
        if every and (self.step % every == 0 or self.step == self.total_steps):
            self._measure_gradients()

    def _learning_rate(self) -> Tensor:
        return self._rates * schedule_factor(self.study.schedule, self.step, self.total_steps)

    def _validation_errors(self) -> list[float]:
        return self.evaluate(self.parameters, "val")

    def measured(self) -> list[dict[str, Any]]:
        """Test every trial at its best validation."""
        parameters = self.study.model(self.task, device="meta").parameter_count()
        rows = []
        for record, test_error in zip(self.records, self.evaluate(self.best, "test"), strict=True):
            validated = record.best_step is not None and math.isfinite(test_error)
            rows.append(
                {
                    "val_error": record.best_error if validated else None,
                    "test_error": test_error if validated else None,
                    "best_step": record.best_step if validated else None,
                    "parameters": parameters,
                }
            )
            if not math.isfinite(test_error) and record.diverged_step is None:
                record.diverged_step = self.step
        return rows

    def evaluate(self, parameters: Tensors, split: Split) -> list[float]:
        """Return the error of each stacked model on a whole split, within the memory bound of a training step."""
        self.model.eval()
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

    def _gradients_of_all(self) -> tuple[Tensors, Tensor, Tensor]:
        index, everything, share = self._next_index(), self._processes, None  # [E, B]
        if everything.count > 1:
            share = everything.share(self.task.lengths("train", index))
            index = index.gather(1, share)
        inputs, targets = self._batch(index)  # [E, T, B, I], [E, (T,) B]
        resets = self.task.resets("train", index)  # [E, T, B]
        counts = everything.total(vmap(self.task.count)(targets))[0]  # [E] targets in the whole batch
        batch = inputs, targets, counts, *self._mask_keys(share), *(() if resets is None else (resets,))
        if everything.count == 1:
            clipped, norms, losses = self._captured_or_not(self._clipped_gradients, *batch)
            return clipped, norms, losses.double() / self.study.batch_size
        gradients, losses = self._captured_or_not(self._gradients, *batch)
        asked = losses.new_full((), float(self.stop_wanted))
        *sums, losses, asked = everything.total(*gradients.values(), losses, asked)
        self.stop_agreed = bool(asked > 0)
        return *clip(dict(zip(gradients, sums, strict=True))), losses.double() / self.study.batch_size

    def _batch(self, index: Tensor) -> tuple[Tensor, Tensor]:
        """Return inputs and targets; a share of a small batch may have no sequence."""
        if index.size(1):
            return self.task.batch("train", index, self.study.dtype)
        inputs, targets = self.task.batch("train", index.new_zeros(index.size(0), 1), self.study.dtype)
        return inputs[:, :, :0], targets[..., :0]

    def _mask_keys(self, share: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return the keys [E, draws] of each trial's masks, and the places [E, b] of the batch or of a share of it."""
        trials, draws = [self.records[k].trial for k in self.running], range(len(self._draws))
        rows = [[self.study.mask_key(trial, self.step, draw) for draw in draws] for trial in trials]
        keys = torch.tensor(rows, dtype=torch.int64).view(len(trials), len(draws))
        places = torch.arange(self.study.batch_size).expand(len(trials), -1) if share is None else share
        return keys.to(self.device), places.to(self.device)

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
        self,
        inputs: Tensor,
        targets: Tensor,
        counts: Tensor | None = None,
        keys: Tensor | None = None,
        places: Tensor | None = None,
        resets: Tensor | None = None,
    ) -> tuple[Tensors, Tensor]:
        """Return each trial's gradients and loss [E], with as many steps in memory at once as the study says."""
        study = self.study
        masks = None if keys is None or places is None else TrialMasks(self._draws, keys, places, study.batch_size)
        self.model.train()
        backpropagate = recomputed if study.checkpoint_segments else truncated
        with self._arithmetic():
            return backpropagate(
                self.model,
                self.task,
                self.parameters,
                inputs,
                targets,
                None if masks is None else masks.piece,
                resets,
                length=study.steps_at_once(inputs.size(1)),
                counts=counts,
                sequences=study.batch_size,
            )

    def _clipped_gradients(self, *batch: Tensor) -> tuple[Tensors, Tensor, Tensor]:
        gradients, losses = self._gradients(*batch)
        return *clip(gradients), losses

    def _measure_gradients(self) -> None:
        """Note how much of the gradient of each sequence's last loss arrives at earlier states, on one validation batch."""
        self.model.eval()
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
            others = (probe.detach(),) * (len(layer.cell.state) - 1)
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

    def _rows_changed(self) -> None:
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
