"""Gradients of trials stacked on a leading axis, with no more steps in memory at once than the caller allows.

`truncated` hands the state on from piece to piece and cuts the gradients there; with one piece of all steps nothing is cut.
`recomputed` never cuts: it keeps the states between the pieces, and computes each piece again on the way back.

E trials, T time, B batch, I input, H hidden.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.func import functional_call, grad_and_value, vjp, vmap

from mistrnn.layers.state import State, state_from_tensors, state_tensors
from mistrnn.tasks import Task
from mistrnn.training.model import Model
from mistrnn.training.optimizers import Tensors

States = tuple[Tensor, ...]
"""The tensors of a layer's state, the integers (Clockwork's clock) last; none before the first step."""

Masks = tuple[Tensor, ...] | None
"""Those that `Model.forward` takes, for all trials."""
MasksOf = Callable[[int, int], Masks]
"""(first step, end) -> the masks of these steps."""


class Piece(NamedTuple):
    """Some steps of a batch, for all trials."""

    inputs: Tensor
    """[E, steps, B, I]"""
    targets: Tensor | None
    """[E, steps, B], or [E, B] at the end of the sequence; None where nothing is asked for."""
    counts: Tensor
    """[E] targets in the whole batch, so that the mean over all of them is a sum over pieces."""
    masks: Masks
    resets: Tensor | None
    """Where sequences start afresh, bool [E, steps, B]; None for nowhere."""


def truncated(
    model: Model,
    task: Task,
    parameters: Tensors,
    inputs: Tensor,
    targets: Tensor,
    masks_of: MasksOf | None = None,
    resets: Tensor | None = None,
    *,
    length: int,
    counts: Tensor | None = None,
    sequences: int | None = None,
) -> tuple[Tensors, Tensor]:
    """Return each trial's gradients, cut between pieces of `length` steps, and its loss [E].

    Args:
        model: the module to compute; its own parameters are not read.
        task: defines the loss.
        parameters: those of all trials by name, [E, ...].
        inputs: [E, T, B, I].
        targets: [E, T, B], or [E, B] if only the end has one.
        masks_of: returns the masks of a piece, each time that it is computed; None if the model draws none.
        resets: where sequences start afresh, bool [E, T, B].
        length: steps in memory at once.
        counts: [E] how many targets the mean goes over; those given if left out.
        sequences: how many sequences the loss is multiplied by; those given if left out.

    With a part of a batch, `counts` and `sequences` are those of the whole: the gradients and losses of all parts then
    add up to those of the batch. A part without sequences adds zeros.
    """
    gradients, losses = _nothing_yet(parameters, inputs)
    state: States = ()
    for make_piece in _pieces(task, inputs, targets, masks_of, resets, length, counts):
        piece = make_piece()
        if piece.targets is None:
            state = _state_after(model, parameters, state, piece)
        else:
            loss = grad_and_value(_loss(model, task, sequences), has_aux=True)
            found, (values, state) = _over_trials(loss, parameters, state, *piece)
            gradients, losses = _sum(gradients, found), losses + values
    return gradients, losses


@torch.no_grad()  # vjp takes its own derivatives all the same, and second ones are not needed
def recomputed(
    model: Model,
    task: Task,
    parameters: Tensors,
    inputs: Tensor,
    targets: Tensor,
    masks_of: MasksOf | None = None,
    resets: Tensor | None = None,
    *,
    length: int,
    counts: Tensor | None = None,
    sequences: int | None = None,
) -> tuple[Tensors, Tensor]:
    """Return each trial's gradients through all steps, and its loss [E], with segments of `length` steps computed twice.

    Memory holds the states between segments and the saved tensors of one segment. Arguments as in `truncated`.
    """
    loss = _loss(model, task, sequences)

    def backwards(
        parameters: Tensors, state: States, from_later: States, *piece: Any
    ) -> tuple[Tensors, States, Tensor]:
        """Return one trial's gradients from a segment, that of the state before it, and the loss."""
        carried, clock = _apart(state)

        def forwards(parameters: Tensors, carried: States) -> tuple[Tensor, States]:
            value, after = loss(parameters, (*carried, *clock), *piece)
            return value, _apart(after)[0]

        (value, handed_on), pull, *_ = vjp(forwards, parameters, carried)
        from_later = from_later or tuple(torch.zeros_like(part) for part in handed_on)
        found, from_here = pull((torch.ones_like(value), from_later))
        return found, from_here, value

    gradients, losses = _nothing_yet(parameters, inputs)
    pieces = _pieces(task, inputs, targets, masks_of, resets, length, counts)
    states: list[States] = [()]
    for make_piece in pieces[:-1]:
        states.append(_state_after(model, parameters, states[-1], make_piece()))
    from_later: States = ()  # the gradient of the state that a segment hands on
    for make_piece in reversed(pieces):
        found, from_later, values = _over_trials(backwards, parameters, states.pop(), from_later, *make_piece())
        gradients, losses = _sum(gradients, found), losses + values
    return gradients, losses


def _nothing_yet(parameters: Tensors, inputs: Tensor) -> tuple[Tensors, Tensor]:
    """Return gradients and losses to add to."""
    return {name: torch.zeros_like(value) for name, value in parameters.items()}, inputs.new_zeros(inputs.size(0))


def _sum(gradients: Tensors, more: Tensors) -> Tensors:
    return {name: value + more[name] for name, value in gradients.items()}


def _pieces(
    task: Task,
    inputs: Tensor,
    targets: Tensor,
    masks_of: MasksOf | None,
    resets: Tensor | None,
    length: int,
    counts: Tensor | None,
) -> list[Callable[[], Piece]]:
    """Return functions that make the pieces of `length` steps of a batch; one without sequences has none."""
    steps, batch = inputs.shape[1:3]
    if batch == 0:
        return []
    counts = vmap(task.count)(targets) if counts is None else counts

    def piece(begin: int, end: int) -> Piece:
        at_end = targets if end >= steps else None
        return Piece(
            inputs[:, begin:end],
            targets[:, begin:end] if task.every_step else at_end,
            counts,
            None if masks_of is None else masks_of(begin, min(end, steps)),
            None if resets is None else resets[:, begin:end],
        )

    return [partial(piece, begin, begin + length) for begin in range(0, steps, length)]


def _loss(model: Model, task: Task, sequences: int | None) -> Callable[..., tuple[Tensor, States]]:
    """Return the function of one trial that runs it through a piece, to the loss there and the state after it."""

    def loss(
        parameters: Tensors,
        state: States,
        inputs: Tensor,
        targets: Tensor | None,
        count: Tensor,
        masks: Masks,
        reset: Tensor | None,
    ) -> tuple[Tensor, States]:
        scores, after = functional_call(model, parameters, (inputs, _state(model, state), masks, reset))
        value = inputs.new_zeros(()) if targets is None else task.loss(scores, targets, count, sequences)
        return value, state_tensors(after)

    return loss


def _state_after(model: Model, parameters: Tensors, state: States, piece: Piece) -> States:
    """Return the state that each trial hands on from a piece, without a way back through it."""

    def run(parameters: Tensors, state: States, inputs: Tensor, masks: Masks, reset: Tensor | None) -> States:
        return state_tensors(functional_call(model, parameters, (inputs, _state(model, state), masks, reset))[1])

    with torch.no_grad():
        after: States = _over_trials(run, parameters, state, piece.inputs, piece.masks, piece.resets)
    return after


def _over_trials(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function of one trial for all of them: every argument has a trial axis in front, or is None."""
    return vmap(function, in_dims=tuple(None if argument is None else 0 for argument in arguments))(*arguments)


def _state(model: Model, tensors: States) -> State | None:
    return state_from_tensors(tensors, model.layer.cell.keeps_history) if tensors else None


def _apart(state: States) -> tuple[States, States]:
    """Return the floating-point parts of a state, which carry gradients, and the integer parts."""
    carried = tuple(part for part in state if part.is_floating_point())
    return carried, state[len(carried) :]
