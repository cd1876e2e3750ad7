"""The fused backends as torch operators, `torch.ops.mistrnn.<cell>` and `<cell>_backward`, and under torch.func.

Every registered cell has its pair of operators. Every tensor has a trial axis in front: vmap folds its own axis into it, so
that many trials are one call.

An operator of torch.library serves export, torch.compile and ordinary autograd, but torch.func.grad cannot transform it
(torch 2.13). An autograd.Function can be transformed by torch.func, but torch.compile fails on one whose backward pass is
again a Function. So `run` calls the operator under torch.compile and export, a Function around it under torch.func, and
otherwise a Function with less overhead, because a small layer would spend more time in Python than in its kernels.
"""

import inspect
from collections.abc import Callable, Sequence
from functools import partial
from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from mistrnn._torch_compat import dispatch_mode_count, has_storage, in_function_transform
from mistrnn.kernels.cell import Cell, Lags, for_each_cell
from mistrnn.kernels.cell import cell as cell_of
from mistrnn.kernels.contract import (
    DIFFERENTIABLE,
    INPUTS,
    SavedLayout,
    Settings,
    is_lazy,
    is_wanted,
    saved_dtype,
    wanted_flags,
)
from mistrnn.kernels.cpu import backend as cpu
from mistrnn.kernels.cuda import backend as cuda

Tensors = tuple[Tensor, ...]
Reference = Callable[[Cell, Sequence[Tensor | None], Settings], Tensors]
"""The reference loop over time: the same inputs; output, final h and, if there is one, final c."""

_references: list[Reference] = []

_REQUIRED = ("x", "weight_ih", "weight_hh", "initial_h")
_TENSORS = ", ".join(f"Tensor{'' if name in _REQUIRED else '?'} {name}" for name in INPUTS)
_SETTINGS = "int[] lags, float zoneout, bool reverse, bool save, int splits"
_GRADIENTS = ("d_output", "d_final_h", "d_final_c")
_FORWARD_SCHEMA = (
    f"({_TENSORS}, {_SETTINGS}) -> (Tensor output, Tensor final_h, Tensor final_c, Tensor saved, Tensor layout)"
)
_BACKWARD_SCHEMA = (
    f"({', '.join(f'Tensor? {name}' for name in _GRADIENTS)}, {_TENSORS}, Tensor output, Tensor saved, Tensor layout, "
    f"{_SETTINGS}, bool[] wanted) -> ({', '.join(f'Tensor d_{name}' for name in DIFFERENTIABLE)})"
)
_COUNT = len(INPUTS)
_NO_LAG = 1
_RESULTS = 3
"""Results of the forward run that the backward run is given: output, saved, layout."""


def run(cell: str, inputs: Sequence[Tensor | None], settings: Settings) -> Tensors:
    """Return output [T, B, H] and the final states [M, B, H] of one trial, from INPUTS without the trial axis."""
    compiling = torch.compiler.is_compiling()
    if not compiling and not in_function_transform() and (device := _direct(inputs)):
        if settings.save:
            found: Tensors = _OneTrial.apply(device, cell, settings, *inputs)  # type: ignore[no-untyped-call]
            return found
        return _run_one_trial(device, cell, settings, inputs)[0]
    function = getattr(torch.ops.mistrnn, cell) if compiling else partial(_Forward.apply, cell)
    # AOTInductor turns an empty list into None.
    settings = settings._replace(lags=list(settings.lags) or [_NO_LAG])
    results = function(*_with_trial_axis(inputs), *settings)
    return tuple(result.squeeze(0) for result in results[: 1 + len(cell_of(cell).state)])


def _settings(cell: Cell, values: Sequence[Any]) -> Settings:
    """Return the settings of an operator's call; a cell without lags has a placeholder for them."""
    settings = Settings(*values)
    return settings._replace(lags=()) if cell.lags is Lags.NONE else settings


def set_reference(reference: Reference) -> None:
    """Set the reference loop, from which second derivatives are taken."""
    _references[:] = [reference]


def _register_operators(cell: Cell) -> None:
    def forward(device: ModuleType, *arguments: Any) -> Tensors:
        inputs = _named(arguments)
        output, final_h, final_c, saved, layout = device.forward(cell.name, inputs, _settings(cell, arguments[_COUNT:]))
        return (
            output,
            final_h,
            output.new_empty(0) if final_c is None else final_c,
            output.new_empty(0, dtype=saved_dtype(output.dtype)) if saved is None else saved,
            torch.tensor(layout, dtype=torch.int64),
        )

    def forward_shapes(*arguments: Any) -> Tensors:
        inputs, settings = _named(arguments), _settings(cell, arguments[_COUNT:])
        x, initial = inputs["x"], inputs["initial_h"]
        (trials, steps, batch, _), (_, memory, _, hidden) = x.shape, initial.shape
        saved: tuple[int, ...] = (0,)
        if settings.save and x.device.type == "cuda":
            saved = cuda.saved_shape(cell.name, inputs, settings)
        elif settings.save:
            saved = (trials, steps, batch, cpu.saved_size(cell, hidden, inputs, settings))
        final = initial.new_empty(trials, memory, batch, hidden)
        return (
            initial.new_empty(trials, steps, batch, hidden),
            final,
            torch.empty_like(final) if len(cell.state) > 1 else initial.new_empty(0),
            initial.new_empty(saved, dtype=saved_dtype(initial.dtype)),
            torch.empty(len(SavedLayout._fields), dtype=torch.int64),
        )

    def backward(device: ModuleType, *arguments: Any) -> Tensors:
        gradients, inputs, (output, saved, layout), settings, wanted = _backward_arguments(arguments)
        named, how = dict(zip(_GRADIENTS, gradients, strict=True)), SavedLayout(*layout.tolist())
        settings = _settings(cell, settings)
        found = device.backward(cell.name, named, _named(inputs), output, saved, how, settings, wanted)
        return tuple(output.new_empty(0) if gradient is None else gradient for gradient in found)

    def backward_shapes(*arguments: Any) -> Tensors:
        _, inputs, (output, *_), _, wanted = _backward_arguments(arguments)
        return tuple(
            tensor.new_empty(tensor.shape) if tensor is not None and is_wanted(name, wanted) else output.new_empty(0)
            for name, tensor in zip(DIFFERENTIABLE, inputs, strict=False)
        )

    for name, schema, function, shapes, derivative in (
        (cell.name, _FORWARD_SCHEMA, forward, forward_shapes, _Forward),
        (f"{cell.name}_backward", _BACKWARD_SCHEMA, backward, backward_shapes, _Backward),
    ):
        operator = torch.library.custom_op(
            f"mistrnn::{name}", partial(function, cpu), mutates_args=(), device_types="cpu", schema=schema
        )
        operator.register_kernel("cuda", partial(function, cuda))
        _implementations[name] = function
        operator.register_fake(shapes)
        operator.register_vmap(_folding(operator))
        operator.register_autograd(
            _with_cell(cell.name, derivative.backward),
            setup_context=_with_cell_context(cell.name, derivative.setup_context),
        )


_DEVICES: dict[str, ModuleType] = {"cpu": cpu, "cuda": cuda}

_implementations: dict[str, Callable[..., Tensors]] = {}
"""The implementation of each operator by name, given the backend."""


def _direct(tensors: Sequence[Tensor | None]) -> ModuleType | None:
    """Return the backend of these tensors' device if it may be called without the operator, else None.

    The operator's bookkeeping takes longer than a small layer, and its first call loads all of torch's compiler.
    """
    given = [tensor for tensor in tensors if tensor is not None]
    # Batched tensors have no storage, and subclasses may give theirs another meaning.
    ordinary = _ORDINARY.issuperset(map(type, given)) and all(map(has_storage, given))
    ordinary = ordinary and not any(map(is_lazy, given))
    observed = dispatch_mode_count() > 0
    return _DEVICES.get(given[0].device.type) if ordinary and not observed else None


_ORDINARY = {Tensor, Parameter}


def _call(name: str, arguments: Sequence[Any]) -> Tensors:
    """Call an operator, or its implementation directly."""
    device = _direct([argument for argument in arguments if isinstance(argument, Tensor)])
    if device is None:
        found: Tensors = getattr(torch.ops.mistrnn, name)(*arguments)
        return found
    return _implementations[name](device, *arguments)


def _gradients(
    cell: str,
    gradients: Sequence[Tensor | None],
    tensors: Sequence[Tensor | None],
    output: Tensor,
    saved: Tensor,
    layout: Tensor | SavedLayout,
    settings: Sequence[Any],
    needed: Sequence[bool],
) -> list[Tensor | None]:
    """Return the gradients of DIFFERENTIABLE that are needed, from those of the outputs; differentiable if necessary."""
    if all(gradient is None for gradient in gradients):
        return [None] * len(needed)
    wanted = wanted_flags(needed)
    transformed = torch.is_grad_enabled() or in_function_transform()
    device = None if transformed else _direct((*gradients, *tensors, output, saved))
    if device is None:
        layout = layout if isinstance(layout, Tensor) else torch.tensor(layout, dtype=torch.int64)
        found = _Backward.apply(cell, *gradients, *tensors, output, saved, layout, *settings, wanted)  # type: ignore[no-untyped-call]
    else:
        layout = SavedLayout(*layout.tolist()) if isinstance(layout, Tensor) else layout
        named = dict(zip(_GRADIENTS, gradients, strict=True))
        found = device.backward(
            cell, named, _named(tensors), output, saved, layout, _settings(cell_of(cell), settings), wanted
        )
    return [value if need else None for value, need in zip(found, needed, strict=True)]


class _OneTrial(torch.autograd.Function):
    """One trial of ordinary tensors; the trial axis is added and removed inside, without autograd."""

    @staticmethod
    def forward(ctx: Any, device: ModuleType, cell: str, settings: Settings, *inputs: Tensor | None) -> Tensors:
        results, saved, ctx.layout = _run_one_trial(device, cell, settings, inputs)
        ctx.cell, ctx.settings = cell, settings
        ctx.save_for_backward(*inputs, results[0], saved)
        ctx.set_materialize_grads(False)
        return results

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Any, ...]:
        *tensors, saved = ctx.saved_tensors
        *inputs, output = _with_trial_axis(tensors)
        given = _with_trial_axis((*gradients, None)[: len(_GRADIENTS)])
        needed = ctx.needs_input_grad[3 : 3 + len(DIFFERENTIABLE)]
        assert output is not None
        found = _gradients(ctx.cell, given, inputs, output, saved, ctx.layout, ctx.settings, needed)
        return None, None, None, *(None if d is None else d.squeeze(0) for d in found), *_NO_GRADIENTS


_NO_GRADIENTS = (None,) * (_COUNT - len(DIFFERENTIABLE))


def _run_one_trial(
    device: ModuleType, cell: str, settings: Settings, inputs: Sequence[Tensor | None]
) -> tuple[Tensors, Tensor | None, SavedLayout]:
    """Return output and final state without the trial axis, and saved values with it."""
    *results, saved, layout = device.forward(cell, _named(_with_trial_axis(inputs)), settings)
    # In place: a view that is made in here could not be written to by the caller.
    return tuple(result.squeeze_(0) for result in results if result is not None), saved, layout


def _with_trial_axis(tensors: Sequence[Tensor | None]) -> list[Tensor | None]:
    return [None if tensor is None else tensor.unsqueeze(0) for tensor in tensors]


class _Forward(torch.autograd.Function):
    @staticmethod
    def forward(cell: str, *arguments: Any) -> Tensors:
        return _call(cell, arguments)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensors) -> None:
        ctx.cell, tensors, ctx.settings = inputs[0], inputs[1 : 1 + _COUNT], inputs[1 + _COUNT :]
        ctx.save_for_backward(*tensors, output[0], *output[3:])
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Any, ...]:
        *tensors, output, saved, layout = ctx.saved_tensors
        needed = ctx.needs_input_grad[1 : 1 + len(DIFFERENTIABLE)]
        found = _gradients(ctx.cell, gradients[:3], tensors, output, saved, layout, ctx.settings, needed)
        return None, *found, *_NO_GRADIENTS, *(None,) * len(Settings._fields)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], cell: str, *arguments: Any) -> tuple[Tensors, tuple[int, ...]]:
        return _fold(lambda *folded: _Forward.apply(cell, *folded), info, in_dims[1:], arguments)  # type: ignore[no-untyped-call]


class _Backward(torch.autograd.Function):
    @staticmethod
    def forward(cell: str, *arguments: Any) -> Tensors:
        return _call(f"{cell}_backward", arguments)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensors) -> None:
        ctx.cell = inputs[0]
        gradients, tensors, _, ctx.settings, ctx.wanted = _backward_arguments(inputs[1:])
        ctx.save_for_backward(*gradients, *tensors)
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, *seconds: Tensor | None) -> tuple[Any, ...]:
        """Differentiate the backward pass of the reference loop."""
        saved = ctx.saved_tensors
        gradients, tensors = saved[: len(_GRADIENTS)], saved[len(_GRADIENTS) :]
        here = [k for k, gradient in enumerate(gradients) if gradient is not None]
        has = [k for k in range(len(DIFFERENTIABLE)) if tensors[k] is not None]
        cell, (reference,) = cell_of(ctx.cell), _references

        def first(outer: list[Tensor], inner: list[Tensor]) -> list[Tensor]:
            def outputs(values: list[Tensor]) -> list[Tensor]:
                replaced = dict(zip(has, values, strict=True))
                found = reference(cell, [replaced.get(k, tensor) for k, tensor in enumerate(tensors)], ctx.settings)
                return [found[k] for k in here]

            found: list[Tensor] = torch.func.vjp(outputs, inner)[1](outer)[0]
            return found

        outer, inner = [gradients[k] for k in here], [tensors[k] for k in has]
        found, pull, *_ = torch.func.vjp(first, outer, inner)
        given = [seconds[k] for k in has]
        d_outer, d_inner = pull(
            [torch.zeros_like(value) if d is None else d for d, value in zip(given, found, strict=True)]
        )
        result: list[Any] = [None] * (1 + len(_GRADIENTS) + _COUNT + _RESULTS + len(Settings._fields) + 1)
        for k, value in zip(here, d_outer, strict=True):
            result[1 + k] = value
        for k, value in zip(has, d_inner, strict=True):
            result[1 + len(_GRADIENTS) + k] = value
        return tuple(result)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], cell: str, *arguments: Any) -> tuple[Tensors, tuple[int, ...]]:
        return _fold(lambda *folded: _Backward.apply(cell, *folded), info, in_dims[1:], arguments)  # type: ignore[no-untyped-call]


# torch reads the signature of `forward` at each call; as an attribute, it is computed once.
for _function in (_Forward, _Backward):
    _function.forward.__signature__ = inspect.signature(_function.forward)  # type: ignore[attr-defined]


def _named(arguments: Sequence[Any]) -> dict[str, Any]:
    return dict(zip(INPUTS, arguments, strict=False))


def _backward_arguments(arguments: Sequence[Any]) -> tuple[Any, Any, Any, Settings, list[bool]]:
    """Return the gradients of the outputs, the inputs, the results of the forward run, the settings, the wanted flags."""
    first, rest = arguments[: len(_GRADIENTS)], arguments[len(_GRADIENTS) : -1]
    inputs, results, settings = rest[:_COUNT], rest[_COUNT : _COUNT + _RESULTS], rest[_COUNT + _RESULTS :]
    return first, inputs, results, Settings(*settings), arguments[-1]


def _fold(
    function: Callable[..., Tensors], info: Any, in_dims: Sequence[Any], arguments: Sequence[Any]
) -> tuple[Tensors, tuple[int, ...]]:
    """Call with vmap's axis folded into the trial axis of every tensor, and unfold it in the results."""
    size = info.batch_size

    def moved(argument: Tensor, dim: int | None) -> Tensor:  # [vmap's axis, trials, ...]
        return argument.unsqueeze(0).expand(size, *argument.shape) if dim is None else argument.movedim(dim, 0)

    # Lists of numbers come with a list of dims and are passed on as they are. An empty tensor, which stands for None in an
    # operator's results, has no trial axis, nor has the layout, which is the same for all trials.
    pairs = list(zip(arguments, in_dims, strict=True))
    fronts = [moved(argument, dim) if isinstance(argument, Tensor) else argument for argument, dim in pairs]
    trials = next(front.size(1) for front in fronts if isinstance(front, Tensor) and front.dim() > 2)
    results = function(*(_joined(front) if isinstance(front, Tensor) else front for front in fronts))

    def unfolded(result: Tensor) -> Tensor:
        if result.dim() == 1:
            return result.unsqueeze(0).expand(size, *result.shape)
        return result.reshape(size, trials, *result.shape[1:])

    return tuple(unfolded(result) for result in results), (0,) * len(results)


def _joined(front: Tensor) -> Tensor:
    if front.dim() > 2:
        return front.flatten(0, 1)
    return front[0] if front.size(0) else front.new_empty(0)


def _folding(operator: Any) -> Callable[..., tuple[Tensors, tuple[int, ...]]]:
    def rule(info: Any, in_dims: tuple[Any, ...], *arguments: Any) -> tuple[Tensors, tuple[int, ...]]:
        return _fold(operator, info, in_dims, arguments)

    return rule


def _with_cell(cell: str, backward: Callable[..., tuple[Any, ...]]) -> Callable[..., tuple[Any, ...]]:
    """Make a Function's backward that of an operator, which has no argument for the cell."""

    class Context:
        def __init__(self, ctx: Any) -> None:
            self.cell, self.settings, self.saved_tensors = cell, ctx.settings, ctx.saved_tensors
            self.wanted = getattr(ctx, "wanted", None)
            self.needs_input_grad = (False, *ctx.needs_input_grad)

    return lambda ctx, *gradients: backward(Context(ctx), *gradients)[1:]


def _with_cell_context(cell: str, setup: Callable[..., None]) -> Callable[..., None]:
    return lambda ctx, inputs, output: setup(ctx, (cell, *inputs), output)


for_each_cell(_register_operators)
