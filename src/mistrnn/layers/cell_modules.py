"""Cells: one step of each layer as a module, in the way of torch.nn.LSTMCell.

B batch, I input, H hidden, M memory (the longest delay).
"""

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from mistrnn.layers import checks
from mistrnn.layers.backends import Backend
from mistrnn.layers.base import RecurrentLayer
from mistrnn.layers.clockwork import Clockwork
from mistrnn.layers.gru import GRU
from mistrnn.layers.lstm import LSTM
from mistrnn.layers.mist import MIST
from mistrnn.layers.narx import NARX
from mistrnn.layers.peephole_lstm import PeepholeLSTM
from mistrnn.layers.rnn import RNN
from mistrnn.layers.sequence_mask import SequenceMask
from mistrnn.layers.state import HistoryState, State


class RecurrentCell(nn.Module):
    """One step of a layer, as torch.nn.LSTMCell.

    Parameters have their short names: `weight_ih`, `weight_hh` and so on. The cell takes the arguments of its layer but for
    those of a stack.

    Args:
        input_size: I, the number of inputs.
        hidden_size: H, the number of units.
        bias: whether there are biases.
        device: device of the parameters.
        dtype: dtype of the parameters.
        options: further arguments of the layer, such as `delays` or `zoneout`.
    """

    layer_class: ClassVar[type[RecurrentLayer]]
    _template: RecurrentLayer
    """A layer on the meta device, which knows shapes, checks and step; the parameters are this module's own."""

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        **options: Any,
    ) -> None:
        super().__init__()
        name = type(self).__name__
        for stacked in ("num_layers", "batch_first", "dropout", "bidirectional"):
            if stacked in options:
                raise TypeError(f"{name}: expected no {stacked}, because a cell is one step of one layer.")
        drawn = self.layer_class(input_size, hidden_size, bias=bias, device=device, dtype=dtype, **options)
        own = drawn.own_parameters(0, 0)
        for short, parameter in own.items():
            self.register_parameter(short, nn.Parameter(parameter.detach()))
        self._short_names = tuple(own)
        template = self.layer_class(input_size, hidden_size, bias=bias, device="meta", dtype=dtype, **options)
        object.__setattr__(self, "_template", template)  # no submodule: it has no parameters of its own
        self.input_size, self.hidden_size = template.input_size, template.hidden_size
        if "bias" not in own:  # else `bias` is the parameter
            self.bias = template.bias

    @property
    def backend(self) -> Backend:
        """The backend, as of the layers."""
        return self._template.backend

    @backend.setter
    def backend(self, backend: Backend) -> None:
        self._template.backend = backend

    def reset_parameters(self) -> None:
        """Draw the parameters as in the paper."""
        with torch.no_grad():
            for short, parameter in self.named_parameters(recurse=False):
                parameter.copy_(self._template.initial_value(short, parameter))

    def forward(self, input: Tensor, state: State | None = None, *, hx: State | None = None) -> State:
        """Take one step.

        Args:
            input: [B, I], or [I] for one sequence.
            state: the result of the step before; zeros if None.
            hx: the same, by its name in torch.nn.

        Returns:
            The state after the step, without the axis of layers: h [B, H] of RNN and GRU, the pair (h, c) of LSTM, (h,
            history [M, B, H]) of MIST and NARX, (h, clock [B]) of Clockwork. The output of the step is h.
        """
        layer, name = self._template, type(self).__name__
        if hx is not None:
            if state is not None:
                raise TypeError(f"{name}: expected one of state and hx, which mean the same, got both.")
            state = hx
        weights = layer.weights_from({short: getattr(self, short) for short in self._short_names})
        like = weights["weight_hh"]
        if not isinstance(input, Tensor) or input.dim() not in (1, 2) or input.size(-1) != self.input_size:
            got = list(input.shape) if isinstance(input, Tensor) else type(input).__name__
            raise checks.ShapeError(
                f"{name}: expected input [B, {self.input_size}] or [{self.input_size}], because input_size={self.input_size}, "
                f"got {got}."
            )
        checks.check_input(name, input.reshape(1, -1, self.input_size), self.input_size, False, like)
        layer.training = self.training
        layout = layer.state_layout(input.size(0) if input.dim() == 2 else None)
        (part,) = layout.unpack(None if state is None else _with_layer_axis(state), like)
        x = input.reshape(1, -1, self.input_size).to(like.dtype)
        _, part = layer.run_cell(weights, 0, x, part, SequenceMask(1, x.size(1), x.device))
        return _without_layer_axis(layout.pack([part]))

    def extra_repr(self) -> str:
        """Return the arguments that differ from their defaults."""
        return self._template.extra_repr()


def _with_layer_axis(state: State) -> State:
    if isinstance(state, HistoryState):
        return HistoryState(state.h.unsqueeze(0), state.history.unsqueeze(0))
    if isinstance(state, Sequence) and not isinstance(state, Tensor):
        return tuple(part.unsqueeze(0) for part in state)
    return state.unsqueeze(0) if isinstance(state, Tensor) else state


def _without_layer_axis(state: State) -> State:
    if isinstance(state, HistoryState):
        return HistoryState(state.h.squeeze(0), state.history.squeeze(0))
    return tuple(part.squeeze(0) for part in state) if isinstance(state, tuple) else state.squeeze(0)


class MISTCell(RecurrentCell):
    """One step of `MIST`.

    >>> cell = MISTCell(3, 5, delays=[1, 2, 4])
    >>> state = None
    >>> for x in torch.randn(6, 2, 3):
    ...     state = cell(x, state)
    >>> h, history = state
    >>> h.shape, history.shape
    (torch.Size([2, 5]), torch.Size([4, 2, 5]))
    """

    layer_class = MIST


class NARXCell(RecurrentCell):
    """One step of `NARX`."""

    layer_class = NARX


class ClockworkCell(RecurrentCell):
    """One step of `Clockwork`."""

    layer_class = Clockwork


class PeepholeLSTMCell(RecurrentCell):
    """One step of `PeepholeLSTM`."""

    layer_class = PeepholeLSTM


class LSTMCell(RecurrentCell):
    """One step of `LSTM`, as torch.nn.LSTMCell.

    >>> cell = LSTMCell(3, 5)
    >>> h, c = cell(torch.randn(2, 3))
    >>> h.shape, c.shape
    (torch.Size([2, 5]), torch.Size([2, 5]))
    """

    layer_class = LSTM


class GRUCell(RecurrentCell):
    """One step of `GRU`, as torch.nn.GRUCell."""

    layer_class = GRU


class RNNCell(RecurrentCell):
    """One step of `RNN`, as torch.nn.RNNCell.

    Args:
        nonlinearity: "tanh" or "relu".
    """

    layer_class = RNN

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool = True,
        nonlinearity: str = "tanh",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        **options: Any,
    ) -> None:
        super().__init__(input_size, hidden_size, bias, device, dtype, nonlinearity=nonlinearity, **options)
        self.nonlinearity = nonlinearity
