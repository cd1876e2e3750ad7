"""Optimisers over a trial axis: parameters [E, ...], a learning rate for each trial, clipping of each trial by itself.

torch.optim's updates, with the learning rate as a tensor [E]; E trials.
"""

import math

import torch
from torch import Tensor

Tensors = dict[str, Tensor]

ADAM_BETAS = (0.9, 0.999)
ADAM_EPSILON = 1e-8
MAX_NORM = 1.0
HALVINGS = {"halving": 16, "halving-in-12ths": 12}
"""In the second half of the training, the learning rate is halved at every 16th, or 12th, of all steps."""


def clip(gradients: Tensors) -> tuple[Tensors, Tensor]:
    """Rescale each trial's gradients to a global norm of at most 1, and return them with the norms [E] before."""
    squares = [gradient.flatten(1).square().sum(1) for gradient in gradients.values()]
    norms = torch.stack(squares).sum(0).sqrt()
    scale = (MAX_NORM / norms).clamp(max=1.0)
    return {name: gradient * _per_trial(scale, gradient) for name, gradient in gradients.items()}, norms


class Optimizer:
    """SGD with momentum (0.9 in the paper), Adam or AdamW, in place on stacked parameters.

    Args:
        kind: sgd, adam or adamw.
        parameters: [E, ...] by name.
        weight_decay: of all parameters and trials, or [E] for each parameter by name.
        momentum: of sgd.
    """

    def __init__(
        self, kind: str, parameters: Tensors, weight_decay: float | Tensors = 0.0, momentum: float = 0.9
    ) -> None:
        self.kind, self.weight_decay, self.momentum = kind, weight_decay, momentum
        slots = ("momentum",) if kind == "sgd" else ("mean", "square")
        self.slots = {slot: {name: torch.zeros_like(value) for name, value in parameters.items()} for slot in slots}
        """The state of the optimiser, stacked like the parameters."""

    def keep(self, rows: Tensor) -> None:
        """Leave only some trials, by their rows."""
        self.slots = {
            slot: {name: value[rows] for name, value in values.items()} for slot, values in self.slots.items()
        }
        if isinstance(self.weight_decay, dict):
            self.weight_decay = {name: value[rows] for name, value in self.weight_decay.items()}

    def _decay_of(self, name: str, parameter: Tensor) -> float | Tensor:
        if isinstance(self.weight_decay, dict):
            return _per_trial(self.weight_decay[name].to(parameter.dtype), parameter)
        return self.weight_decay

    def update(self, parameters: Tensors, gradients: Tensors, learning_rate: Tensor, step: int) -> None:
        """Change the parameters by one step; the first has number 1, learning_rate is [E]."""
        for name, parameter in parameters.items():
            gradient = gradients[name]
            rate = _per_trial(learning_rate.to(parameter.dtype), parameter)
            if self.kind == "adamw":
                parameter.mul_(1 - rate * self._decay_of(name, parameter))
            elif self.weight_decay:
                gradient = gradient + self._decay_of(name, parameter) * parameter
            if self.kind == "sgd":
                momentum = self.slots["momentum"][name]
                momentum.mul_(self.momentum).add_(gradient)
                parameter.sub_(rate * momentum)
            else:
                mean, square = self.slots["mean"][name], self.slots["square"][name]
                mean.mul_(ADAM_BETAS[0]).add_(gradient, alpha=1 - ADAM_BETAS[0])
                square.mul_(ADAM_BETAS[1]).addcmul_(gradient, gradient, value=1 - ADAM_BETAS[1])
                mean_correction, square_correction = 1 - ADAM_BETAS[0] ** step, 1 - ADAM_BETAS[1] ** step
                denominator = (square / square_correction).sqrt() + ADAM_EPSILON
                parameter.sub_(rate / mean_correction * mean / denominator)


def schedule_factor(schedule: str, step: int, steps: int) -> float:
    """Return the factor of the learning rate at a step, counted from 1."""
    done = step - 1
    if schedule == "cosine":
        return 0.5 * (1 + math.cos(math.pi * done / steps))
    if schedule in HALVINGS and 2 * done >= steps:  # constant for a half, then halved again and again
        halvings: int = 1 + (2 * done - steps) * HALVINGS[schedule] // (2 * steps)
        return 0.5**halvings
    return 1.0


def _per_trial(values: Tensor, like: Tensor) -> Tensor:
    """Shape [E] so that it multiplies [E, ...]."""
    return values.reshape(-1, *[1] * (like.dim() - 1))
