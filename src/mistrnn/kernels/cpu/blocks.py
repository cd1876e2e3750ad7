"""Operations of network blocks on frames [..., T, B, C]: depthwise convolution, batch normalisation, gated linear unit.

On a CPU each is one compiled pass forward and one or two backward; elsewhere, under torch.compile, torch.export and in forward
mode it is composed of torch's own operations, which also give second derivatives. Under vmap the trials are one call.

E trials, T time, B batch, C channels, K taps.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from mistrnn._torch_compat import in_forward_mode, in_jit_trace
from mistrnn.kernels.contract import is_lazy
from mistrnn.kernels.cpu import library
from mistrnn.kernels.cpu.library import BatchNorm, DepthwiseConv, GatedUnit

WORTH_A_THREAD = 100_000
"""Numbers that take longer than waking a thread."""
RESULTS = ("y", "mean", "rstd", "variance", "d_x", "d_weight", "d_bias")
"""Tensors that kernels write; some of them are not empty where the input is."""


def depthwise_conv(x: Tensor, weight: Tensor, bias: Tensor, ahead: int = 0) -> Tensor:
    """Return silu(bias + sum over k of weight[k] * x[t + ahead - k]) for every step t; x is zero outside of its steps.

    Args:
        x: [T, B, C].
        weight: [K, C], the newest tap first.
        bias: [C].
        ahead: future steps that the newest tap reads; 0 for a causal convolution.

    >>> depthwise_conv(torch.ones(3, 1, 1), torch.ones(2, 1), torch.zeros(1)).flatten()
    tensor([0.7311, 1.7616, 1.7616])
    """
    if _composed(x, weight, bias):
        return _composed_conv(x, weight, bias, ahead)
    found: Tensor = _Conv.apply(x, weight, bias, ahead)  # type: ignore[no-untyped-call]
    return found


def batch_norm(
    x: Tensor, weight: Tensor, bias: Tensor, lengths: Tensor | None, epsilon: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Normalise each channel over all valid frames, and return the result with mean and (biased) variance [C].

    Mean and variance are returned without a gradient of their own.

    Args:
        x: [T, B, C].
        weight: [C].
        bias: [C].
        lengths: [B] valid steps of each sequence; None if all are. The result is zero at all other frames.
        epsilon: is added to the variance.
    """
    if _composed(x, weight, bias):
        return _composed_norm(x, weight, bias, lengths, epsilon)
    y, mean, _, variance = _Norm.apply(x, weight, bias, lengths, epsilon)  # type: ignore[no-untyped-call]
    return y, mean, variance


def gated_unit(x: Tensor) -> Tensor:
    """Return silu(a) * b for x = [a, b], [..., 2C] to [..., C]."""
    if _composed(x):
        return _composed_gate(x)
    found: Tensor = _Gated.apply(x)  # type: ignore[no-untyped-call]
    return found


def _composed(*tensors: Tensor) -> bool:
    """Whether torch's own operations have to serve."""
    first = tensors[0]
    if torch.compiler.is_compiling() or library.loaded is None or first.device.type != "cpu":
        return True
    if any(tensor.dtype != first.dtype for tensor in tensors) or first.dtype not in (torch.float32, torch.float64):
        return True
    return in_jit_trace() or in_forward_mode()


def _composed_conv(x: Tensor, weight: Tensor, bias: Tensor, ahead: int) -> Tensor:
    taps, channels = weight.shape
    padded = F.pad(x.permute(1, 2, 0), (taps - 1 - ahead, ahead))  # [B, C, T + K - 1]
    z = F.conv1d(padded, weight.flip(0).t().unsqueeze(1), bias, groups=channels)
    return F.silu(z.permute(2, 0, 1))


def _composed_norm(
    x: Tensor, weight: Tensor, bias: Tensor, lengths: Tensor | None, epsilon: float
) -> tuple[Tensor, Tensor, Tensor]:
    if lengths is None:
        variance, mean = torch.var_mean(x, (0, 1), correction=0)
        y = (x - mean) * torch.rsqrt(variance + epsilon) * weight + bias
        return y, mean.detach(), variance.detach()
    valid = (torch.arange(x.size(0), device=x.device).unsqueeze(1) < lengths).unsqueeze(-1)  # [T, B, 1]
    count = lengths.sum().clamp_min(1)
    mean = torch.where(valid, x, 0.0).sum((0, 1)) / count
    centred = torch.where(valid, x - mean, 0.0)
    variance = centred.square().sum((0, 1)) / count
    y = centred * torch.rsqrt(variance + epsilon) * weight + bias
    return torch.where(valid, y, 0.0), mean.detach(), variance.detach()


def _composed_gate(x: Tensor) -> Tensor:
    a, b = x.chunk(2, -1)
    return F.silu(a) * b


class _Conv(torch.autograd.Function):
    @staticmethod
    def forward(x: Tensor, weight: Tensor, bias: Tensor, ahead: int) -> Tensor:
        x, weight, bias = map(_plain, (x, weight, bias))
        y = torch.empty_like(x)
        _run(DepthwiseConv(K=weight.size(-2), ahead=ahead), x, x=x, weight=weight, bias=bias, y=y)
        return y

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        *tensors, ctx.ahead = inputs
        ctx.save_for_backward(*tensors)

    @staticmethod
    def backward(ctx: Any, d_y: Tensor) -> tuple[Any, ...]:
        found = _ConvBackward.apply(d_y, *ctx.saved_tensors, ctx.ahead)  # type: ignore[no-untyped-call]
        return *found, None

    @staticmethod
    def vmap(info: Any, in_dims: Sequence[int | None], *arguments: Any) -> tuple[Tensor, int]:
        *tensors, ahead = _stacked(info, in_dims, arguments)
        return _Conv.apply(*tensors, ahead), 0  # type: ignore[no-untyped-call]


class _ConvBackward(torch.autograd.Function):
    @staticmethod
    def forward(d_y: Tensor, x: Tensor, weight: Tensor, bias: Tensor, ahead: int) -> tuple[Tensor, ...]:
        d_y, x, weight, bias = map(_plain, (d_y, x, weight, bias))
        found = torch.empty_like(x), torch.empty_like(weight), torch.empty_like(bias)
        named = dict(zip(("d_x", "d_weight", "d_bias"), found, strict=True))
        call = DepthwiseConv(K=weight.size(-2), ahead=ahead)
        _run(call, x, x=x, weight=weight, bias=bias, d_y=d_y, workspace=torch.empty_like(x), **named)
        return found

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        *tensors, ctx.ahead = inputs
        ctx.save_for_backward(*tensors)

    @staticmethod
    def backward(ctx: Any, *seconds: Tensor) -> tuple[Any, ...]:
        d_y, *tensors = ctx.saved_tensors

        def convolved(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
            return _composed_conv(x, weight, bias, ctx.ahead)

        return *_second(convolved, d_y, tensors, seconds), None

    @staticmethod
    def vmap(info: Any, in_dims: Sequence[int | None], *arguments: Any) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
        *tensors, ahead = _stacked(info, in_dims, arguments)
        return _ConvBackward.apply(*tensors, ahead), (0, 0, 0)  # type: ignore[no-untyped-call]


class _Norm(torch.autograd.Function):
    @staticmethod
    def forward(
        x: Tensor, weight: Tensor, bias: Tensor, lengths: Tensor | None, epsilon: float
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        x, weight, bias = map(_plain, (x, weight, bias))
        lengths = None if lengths is None else _plain(lengths.to(torch.int64))
        y, mean, rstd, variance = torch.empty_like(x), *(torch.empty_like(weight) for _ in range(3))
        call = BatchNorm(epsilon=epsilon)
        _run(call, x, lengths=lengths, x=x, weight=weight, bias=bias, y=y, mean=mean, rstd=rstd, variance=variance)
        return y, mean, rstd, variance

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        x, weight, bias, lengths, ctx.epsilon = inputs
        _, mean, rstd, variance = output
        ctx.save_for_backward(x, weight, bias, lengths, mean, rstd)
        ctx.mark_non_differentiable(mean, rstd, variance)
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, d_y: Tensor | None, *_: Any) -> tuple[Any, ...]:
        x, weight, bias, lengths, mean, rstd = ctx.saved_tensors
        if d_y is None:
            return (None,) * 5
        found = _NormBackward.apply(d_y, x, weight, bias, lengths, mean, rstd, ctx.epsilon)  # type: ignore[no-untyped-call]
        return *found, None, None

    @staticmethod
    def vmap(info: Any, in_dims: Sequence[int | None], *arguments: Any) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
        *tensors, epsilon = _stacked(info, in_dims, arguments)
        return _Norm.apply(*tensors, epsilon), (0, 0, 0, 0)  # type: ignore[no-untyped-call]


class _NormBackward(torch.autograd.Function):
    @staticmethod
    def forward(
        d_y: Tensor,
        x: Tensor,
        weight: Tensor,
        bias: Tensor,
        lengths: Tensor | None,
        mean: Tensor,
        rstd: Tensor,
        epsilon: float,
    ) -> tuple[Tensor, ...]:
        d_y, x, weight, mean, rstd = map(_plain, (d_y, x, weight, mean, rstd))
        lengths = None if lengths is None else _plain(lengths.to(torch.int64))
        found = torch.empty_like(x), torch.empty_like(weight), torch.empty_like(weight)
        named = dict(zip(("d_x", "d_weight", "d_bias"), found, strict=True))
        _run(BatchNorm(), x, lengths=lengths, x=x, weight=weight, mean=mean, rstd=rstd, d_y=d_y, **named)
        return found

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        d_y, x, weight, bias, lengths, *_, ctx.epsilon = inputs
        ctx.save_for_backward(d_y, x, weight, bias, lengths)

    @staticmethod
    def backward(ctx: Any, *seconds: Tensor) -> tuple[Any, ...]:
        d_y, *tensors, lengths = ctx.saved_tensors

        def normalised(x: Tensor, weight: Tensor, bias: Tensor, lengths: Tensor | None) -> Tensor:
            return _composed_norm(x, weight, bias, lengths, ctx.epsilon)[0]

        found = _second(normalised, d_y, tensors, seconds, lengths)
        return *found, None, None, None, None

    @staticmethod
    def vmap(info: Any, in_dims: Sequence[int | None], *arguments: Any) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
        *tensors, epsilon = _stacked(info, in_dims, arguments)
        return _NormBackward.apply(*tensors, epsilon), (0, 0, 0)  # type: ignore[no-untyped-call]


class _Gated(torch.autograd.Function):
    @staticmethod
    def forward(x: Tensor) -> Tensor:
        x = _plain(x)
        y = x.new_empty(*x.shape[:-1], x.size(-1) // 2)
        _run(GatedUnit(), y, x=x, y=y)
        return y

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, d_y: Tensor) -> Tensor:
        found: Tensor = _GatedBackward.apply(d_y, *ctx.saved_tensors)  # type: ignore[no-untyped-call]
        return found

    @staticmethod
    def vmap(info: Any, in_dims: Sequence[int | None], x: Tensor) -> tuple[Tensor, int]:
        return _Gated.apply(*_stacked(info, in_dims, (x,))), 0  # type: ignore[no-untyped-call]


class _GatedBackward(torch.autograd.Function):
    @staticmethod
    def forward(d_y: Tensor, x: Tensor) -> Tensor:
        d_y, x = map(_plain, (d_y, x))
        d_x = torch.empty_like(x)
        _run(GatedUnit(), d_y, x=x, d_y=d_y, d_x=d_x)
        return d_x

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, second: Tensor) -> tuple[Tensor, ...]:
        d_y, x = ctx.saved_tensors
        return _second(_composed_gate, d_y, [x], [second])

    @staticmethod
    def vmap(info: Any, in_dims: Sequence[int | None], *tensors: Tensor) -> tuple[Tensor, int]:
        return _GatedBackward.apply(*_stacked(info, in_dims, tensors)), 0  # type: ignore[no-untyped-call]


def _run(call: DepthwiseConv | BatchNorm | GatedUnit, like: Tensor, **tensors: Tensor | None) -> None:
    """Run a kernel on tensors whose sizes [(E,) (T,) (B,) C] are those of `like`."""
    assert library.loaded is not None
    *trials, call.T, call.B, call.C = (1,) * (3 - like.dim()) + tuple(like.shape)
    call.E = 1
    for size in trials:
        call.E *= size
    call.is_double = like.dtype == torch.float64
    call.threads = max(1, min(torch.get_num_threads(), like.numel() // WORTH_A_THREAD))
    for name, tensor in tensors.items():
        setattr(call, name, None if tensor is None else tensor.data_ptr() or None)
    if like.numel():
        library.loaded.run_block(call)
        return
    for name in RESULTS:
        if (tensor := tensors.get(name)) is not None:
            tensor.zero_()


def _plain(tensor: Tensor) -> Tensor:
    """Return a tensor whose memory holds its values in order."""
    return (tensor.clone() if is_lazy(tensor) else tensor).contiguous()


def _stacked(info: Any, in_dims: Sequence[int | None], arguments: Sequence[Any]) -> list[Any]:
    """Return all tensors with vmap's axis in front."""

    def stacked(argument: Any, dim: int | None) -> Any:
        if not isinstance(argument, Tensor):
            return argument
        return argument.expand(info.batch_size, *argument.shape) if dim is None else argument.movedim(dim, 0)

    return [stacked(*pair) for pair in zip(arguments, in_dims, strict=True)]


def _second(
    function: Callable[..., Tensor], d_y: Tensor, inputs: Sequence[Tensor], seconds: Sequence[Tensor], *fixed: Any
) -> tuple[Tensor, ...]:
    """Return the gradients of d_y and the inputs, from those of the function's first derivatives with respect to its inputs.

    The function is of one trial; `fixed` are its further arguments.
    """
    function = _over_leading_axes(function, d_y.dim() - 3)

    def first(d_y: Tensor, *inputs: Tensor) -> tuple[Tensor, ...]:
        found: tuple[Tensor, ...] = torch.func.vjp(lambda *given: function(*given, *fixed), *inputs)[1](d_y)
        return found

    found: tuple[Tensor, ...] = torch.func.vjp(first, d_y, *inputs)[1](tuple(seconds))
    return found


def _over_leading_axes(function: Callable[..., Tensor], count: int) -> Callable[..., Tensor]:
    for _ in range(count):
        inner = function

        def function(*given: Any, inner: Callable[..., Tensor] = inner) -> Tensor:
            found: Tensor = torch.func.vmap(inner, in_dims=tuple(None if one is None else 0 for one in given))(*given)
            return found

    return function
