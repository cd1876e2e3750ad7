"""The gradient of a loss with respect to the weights, split by the time step at which the weights act.

    (1)  dl_t/dtheta = sum over tau of dl_t/dh_{t-tau} * partial h_{t-tau}/partial theta        (13) to (15) in the paper

A weight acts at every step. The component tau of its gradient is the one of its use at step t - tau: the full derivative of the
loss with respect to the state of that step, times the partial derivative of this state with respect to the weight, with all
earlier states held fixed. Each step reads a copy of the weights here, and one backward pass gives the gradient of every copy.

T time, B batch.
"""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from mistrnn.layers import RecurrentLayer
from mistrnn.layers.backends import CellRun, Weights, project, run_reference
from mistrnn.layers.parameters import suffix_of
from mistrnn.layers.recurrence import StateHistory
from mistrnn.layers.sequence_mask import SequenceMask
from mistrnn.layers.state import Part

Copies = dict[str, list[Tensor]]
"""The copies of each parameter by its name in the model: [steps, ...] for each piece of the sequence, in order."""


@dataclass(frozen=True)
class WeightGradients:
    """The gradient of a loss with respect to recurrent layers' weights, by tau."""

    parameters: dict[str, Tensor]
    """By the parameter's name in the model, [tau from 0 on, ...]."""
    blocks: dict[str, dict[str, slice]]
    """By the parameter's name, the rows of each gate."""

    @property
    def totals(self) -> dict[str, Tensor]:
        """The whole gradients: the sums over tau."""
        return {name: value.sum(0) for name, value in self.parameters.items()}

    def __add__(self, other: object) -> "WeightGradients":
        """Add the components of other sequences of the same model, tau by tau."""
        if not isinstance(other, WeightGradients):
            return NotImplemented
        parameters = {}
        for name, value in self.parameters.items():
            shorter, longer = sorted((value, other.parameters[name]), key=len)
            parameters[name] = torch.cat([longer[: len(shorter)] + shorter, longer[len(shorter) :]])
        return WeightGradients(parameters, self.blocks)

    def norms(self) -> dict[str, Tensor]:
        """Return the norm of each component, [tau] in float64: of each gate's rows as `name gate`, with one gate as `name`."""
        return {
            name if len(self.blocks[name]) == 1 else f"{name} {gate}": torch.linalg.vector_norm(
                value[:, rows].flatten(1), dim=1, dtype=torch.float64
            )
            for name, value in self.parameters.items()
            for gate, rows in self.blocks[name].items()
        }


def weight_gradients(
    model: nn.Module, inputs: Any, loss: Callable[[Any], Tensor], *, at: int | None = None
) -> WeightGradients:
    """Split the gradient of a loss with respect to the weights of recurrent layers by tau, in one backward pass.

    Layers of mistrnn inside the model are found automatically. They run on the reference backend, once over the sequence or in
    pieces that continue from the state of the one before. Of a bidirectional layer the first direction is split. Memory holds
    a gradient as large as the weights for each step.

    Args:
        model: the network.
        inputs: its argument; a tuple holds several arguments.
        loss: a function from the model's output to a scalar, a sum over the batch.
        at: t, the step that the loss belongs to, counted from 0; the last if left out.

    Returns:
        The components by parameter, which add up to its gradient, and their norms by gate as `.norms()`.

    >>> from mistrnn import MIST
    >>> layer = MIST(1, 16)
    >>> found = weight_gradients(layer, torch.randn(100, 4, 1), lambda outputs: outputs[0][-1].sum())
    >>> found.parameters["weight_hh_l0"].shape
    torch.Size([100, 40, 16])
    >>> list(found.norms())[:3]
    ['weight_ih_l0 a', 'weight_ih_l0 r', 'weight_ih_l0 h']
    """
    layers = {name: part for name, part in model.named_modules() if isinstance(part, RecurrentLayer)}
    if not layers:
        raise ValueError(
            f"weight_gradients: expected a model with layers of mistrnn, such as from_torch makes of torch's, got "
            f"{type(model).__name__} without one."
        )
    copies: Copies = {}
    blocks: dict[str, dict[str, slice]] = {}
    with contextlib.ExitStack() as stack:
        stack.enter_context(torch.enable_grad())
        stack.enter_context(torch.compiler.set_stance("force_eager"))
        for name, layer in layers.items():
            stack.enter_context(_copying(layer, f"{name}." if name else "", copies, blocks))
        value = loss(model(*inputs) if type(inputs) is tuple else model(inputs))
        if not isinstance(value, Tensor) or value.dim() != 0:
            got = f"shape {list(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
            raise ValueError(f"weight_gradients: expected the loss to be a scalar Tensor, got {got}.")
        every = [copy for pieces in copies.values() for copy in pieces]
        if not every or not value.requires_grad:
            raise ValueError("weight_gradients: expected a loss that depends on the layers' weights, but it does not.")
        found = iter(torch.autograd.grad(value, every, allow_unused=True, materialize_grads=True))
    parameters = {}
    for name, pieces in copies.items():
        gradient = torch.cat([next(found) for _ in pieces])  # [T, ...]
        last = len(gradient) - 1 if at is None else at
        if type(last) is not int or not 0 <= last < len(gradient):
            raise ValueError(f"weight_gradients: expected `at` to be a step from 0 to {len(gradient) - 1}, got {at!r}.")
        parameters[name] = gradient[: last + 1].flip(0)
    return WeightGradients(parameters, blocks)


@contextlib.contextmanager
def _copying(layer: RecurrentLayer, prefix: str, copies: Copies, blocks: dict[str, dict[str, slice]]) -> Iterator[None]:
    """Let a layer run on the reference backend with a copy of the weights for each step, and collect the copies."""
    own_run, calls = layer.run_cell, 0

    def run_cell(
        weights: Weights,
        direction: int,
        x: Tensor,
        part: Part,
        mask: SequenceMask,
        probes: tuple[Tensor, ...] = (),
        **options: Any,
    ) -> tuple[Tensor, Part]:
        nonlocal calls
        number = calls % (layer.num_layers * layer.directions) // layer.directions
        calls += 1
        if direction == 1:
            return own_run(weights, direction, x, part, mask, probes, **options)
        by_step: list[dict[str, Tensor]] = [{} for _ in range(mask.steps)]
        for short, parameter in layer.own_parameters(number, direction).items():
            copy = parameter.detach().expand(mask.steps, *parameter.shape).requires_grad_()
            copies.setdefault(name := prefix + short + suffix_of(number, direction), []).append(copy)
            blocks[name] = _rows_of(layer, len(parameter))
            for own, value in zip(by_step, copy.unbind(0), strict=True):
                own[short] = value
        initial, clock = (part[:-1], part[-1]) if layer.cell.has_clock else (part, None)
        dropout, zoneout = layer.draw_dropout(mask, x), layer.draw_zoneout(mask, x)
        steps = iter(by_step)

        def step(x_t: Tensor, past: StateHistory) -> tuple[Tensor, ...]:
            own = layer.weights_from(next(steps))
            return layer.step(own, dropout)(project(x_t, own), past)

        given = CellRun(weights, layer.lags, x, initial, clock, mask, dropout, zoneout, probes=probes)
        output, final = run_reference(layer.cell, given, step, lambda x, _: x)
        return output, final if clock is None else (*final, mask.elapsed(clock))

    layer.run_cell = run_cell  # type: ignore[method-assign]
    try:
        yield
    finally:
        del layer.run_cell


def _rows_of(layer: RecurrentLayer, rows: int) -> dict[str, slice]:
    """Return the rows of each gate of a parameter; all rows under one name, if they are not those of the gates."""
    gates, sizes = layer.cell.row_blocks, layer.norm_blocks()
    if len(gates) != len(sizes) or sum(sizes) != rows:  # Clockwork's groups, peepholes
        return {"": slice(0, rows)}
    ends = torch.tensor(sizes).cumsum(0).tolist()
    return {gate.name: slice(end - size, end) for gate, size, end in zip(gates, sizes, ends, strict=True)}
