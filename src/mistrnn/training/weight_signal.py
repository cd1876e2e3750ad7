"""How much of the gradient of a model's weights comes from each step before the loss, on sequences of a task."""

from functools import reduce
from operator import add
from typing import Any

import torch
from torch import Tensor

from mistrnn.analysis import weight_gradients
from mistrnn.tasks import IGNORED, Split, Task
from mistrnn.training.model import Model


def weight_norms(model: Model, task: Task, sequences: int, split: Split = "val") -> dict[str, Tensor]:
    """Return the norms of the gradient's components by tau, [tau] for each gate of each parameter of the layer.

    The loss is that of each sequence's last target alone, summed over the sequences. Components are added over the sequences
    before their norm is taken, as in a training step; each sequence counts tau from its own last target.

    Args:
        model: the network; it is measured in evaluation mode.
        task: defines the loss and has the sequences.
        sequences: how many of the split's first sequences.
        split: where they are taken from.
    """
    inputs, targets = task.batch(split, task.order(split)[:sequences], next(model.parameters()).dtype)
    ends = torch.full((inputs.size(1),), len(inputs) - 1)
    if task.every_step:
        steps = torch.arange(len(inputs)).unsqueeze(1)
        ends = torch.where(targets != IGNORED, steps, 0).amax(0)
        targets = targets.gather(0, ends.unsqueeze(0))  # [1, B]
    was_training = model.training
    model.eval()
    found = []
    for end in sorted(set(ends.tolist())):  # sequences of equal length are split together
        own = ends == end

        def loss(result: Any, own: Tensor = own) -> Tensor:
            scores, _ = result
            return task.loss(scores[-1:] if task.every_step else scores, targets[..., own])

        found.append(weight_gradients(model, inputs[: end + 1, own], loss))
    model.train(was_training)
    return reduce(add, found).norms()
