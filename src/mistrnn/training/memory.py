"""How many trials fit into memory at once."""

from pathlib import Path

import torch
from torch import Tensor

from mistrnn.tasks import Task
from mistrnn.training.study import Study

SAFE_SHARE = 0.6
"""How much of the free memory a group may be expected to take."""

STEP_FACTOR = 4
"""A vmapped step was measured to take 1.8 (NARX) to 5 times (GRU) what autograd keeps for a single model."""


def trials_that_fit(study: Study, task: Task, device: torch.device) -> int:
    """Return how many trials can be expected to train at once on the device; at least one."""
    return max(1, int(SAFE_SHARE * free_memory(device) / bytes_per_trial(study, task)))


def bytes_per_trial(study: Study, task: Task) -> int:
    """Return what the backward pass of one trial keeps, and its parameters with all that is kept beside them.

    Measured on one and two sequences, because what is kept is linear in the batch.
    """
    one, two = (_bytes_kept(study, task, batch) for batch in (1, 2))
    kept = one + (two - one) * (study.batch_size - 1)
    parameters = sum(value.numel() * value.element_size() for value in study.initial_parameters(0, task).values())
    return (
        STEP_FACTOR * kept + 6 * parameters
    )  # parameters, gradients, their clipped form, two slots of the optimiser, the best


def _bytes_kept(study: Study, task: Task, batch: int) -> int:
    """Return the size of the tensors that autograd keeps for one model's backward pass over a batch."""
    model = study.model(task)
    storages: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        storages[storage.data_ptr()] = storage.nbytes()
        return tensor

    steps = min(task.steps, study.truncate or task.steps)
    inputs = torch.zeros(steps, batch, task.input_size, dtype=study.dtype)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        scores, _ = model(inputs)
        scores.sum()
    return sum(storages.values()) + inputs.numel() * inputs.element_size() * task.steps // steps


def free_memory(device: torch.device) -> int:
    """Return the bytes that are free on the device, as far as it tells."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    free = 2**33  # where nothing tells, be careful
    meminfo = Path("/proc/meminfo")
    if meminfo.exists():
        values = dict(line.split(":", 1) for line in meminfo.read_text().splitlines())
        free = int(values["MemAvailable"].split()[0]) * 1024
    limit, used = Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current")
    if limit.exists() and used.exists() and limit.read_text().strip() != "max":
        free = min(free, int(limit.read_text()) - int(used.read_text()))
    return free
