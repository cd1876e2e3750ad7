"""How many trials fit into memory at once, and whether an error says that they did not."""

import contextlib
from collections.abc import Iterator

import torch
from torch import Tensor

from mistrnn._memory import free_memory
from mistrnn.errors import UsageError
from mistrnn.layers.state import state_tensors
from mistrnn.tasks import Task
from mistrnn.training.group import evaluation_batch
from mistrnn.training.model import Model
from mistrnn.training.study import Study

SAFE_SHARE = 0.6
"""How much of the free memory a group may be expected to take."""

PLAIN_FACTOR = 4
"""A vmapped step of the reference backend was measured at 1.8 (NARX) to 5 (GRU) times the memory saved for a single model."""

FUSED_FACTOR = 2
"""The same in fused backend: 1.3 (LSTM, GRU) to 2.1 times (MIST)."""

CUDA_FACTOR = 5
"""The same on a GPU, of what the fused backend on a CPU keeps: counted 2 (LSTM) to 5 times (MIST, RNN), because a run backwards
writes the gradients of all steps for the products that follow."""

EVALUATION_FACTOR = 6
"""Validation keeps the states of all steps, as a list and stacked, and the intermediate tensors of the newest steps."""

FUSED_EVALUATION_FACTOR = 4
"""The same in fused backend: the outputs, the records of a run, and copies in another order."""


class OutOfMemory(Exception):  # noqa: N818
    """A group took more memory than there is."""


def out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory ran out, on a GPU or on the CPU (where torch raises a plain RuntimeError)."""
    text = str(error)
    return isinstance(error, torch.OutOfMemoryError | MemoryError | OverflowError) or (
        isinstance(error, RuntimeError) and ("allocate memory" in text or "Storage size calculation overflowed" in text)
    )


@contextlib.contextmanager
def memory_named(what: str) -> Iterator[None]:
    """Name the object that did not fit into memory."""
    try:
        yield
    except (RuntimeError, MemoryError, OverflowError) as error:
        if out_of_memory(error):
            raise UsageError(f"{what} would not fit into memory ({error}).") from error
        raise


def trials_that_fit(study: Study, task: Task, device: torch.device, share: float = 1.0) -> int:
    """Return how many trials can be expected to train at once in a share of the device's free memory; at least one."""
    return max(1, int(SAFE_SHARE * share * free_memory(device) / bytes_per_trial(study, task, device)))


def bytes_per_trial(study: Study, task: Task, device: torch.device) -> int:
    """Return the memory of one trial: parameters, optimiser state, best parameters, and one step or validation.

    The saved tensors of the backward pass are measured on one and two sequences, because they are linear in the batch.
    """
    model = study.model(task)
    # Measured on the CPU, in the form that the device will run.
    fused = model.layer.why_not_fused(torch.empty(0, dtype=study.dtype, device=device)) is None
    model.layer.backend = "auto" if fused else "reference"
    one, two = (_bytes_kept(model, study, task, batch) for batch in (1, 2))
    factor = PLAIN_FACTOR if not fused else FUSED_FACTOR if device.type == "cpu" else CUDA_FACTOR
    step = factor * (one + (two - one) * (study.batch_size - 1)) + _bytes_of_states(model, study, task)
    width = study.dtype.itemsize * (study.hidden + task.input_size + task.output_size)
    copies = FUSED_EVALUATION_FACTOR if fused else EVALUATION_FACTOR
    validation = copies * _steps_at_once(study, task) * evaluation_batch(study, device) * width
    if study.gradients_every:
        step += (
            3 * task.steps * study.batch_size * study.hidden * study.dtype.itemsize
        )  # the derivatives, and their norms
    parameters = sum(value.numel() * value.element_size() for value in study.initial_parameters(0, task).values())
    # Parameters, gradients, their clipped form, two slots of the optimiser, the best.
    return max(step, validation) + 6 * parameters


def _steps_at_once(study: Study, task: Task) -> int:
    if study.gradients_every:  # measured through all steps, however the training goes
        return task.steps
    return study.steps_at_once(task.steps)


def _bytes_of_states(model: Model, study: Study, task: Task) -> int:
    """Return the size of the states that recomputation keeps between its segments."""
    if study.checkpoint_segments is None:
        return 0
    with torch.no_grad():
        _, state = model(torch.zeros(1, 1, task.input_size, dtype=study.dtype))
    per_sequence: int = sum(part.numel() * part.element_size() for part in state_tensors(state))
    between = -(-task.steps // study.steps_at_once(task.steps)) - 1
    return between * study.batch_size * per_sequence


def _bytes_kept(model: Model, study: Study, task: Task, batch: int) -> int:
    """Return the size of the tensors that autograd keeps for the model's backward pass over a batch."""
    storages: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        storages[storage.data_ptr()] = storage.nbytes()
        return tensor

    steps = _steps_at_once(study, task)
    inputs = torch.zeros(steps, batch, task.input_size, dtype=study.dtype)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        scores, _ = model(inputs)
        scores.sum()
    return sum(storages.values()) + inputs.numel() * inputs.element_size() * task.steps // steps
