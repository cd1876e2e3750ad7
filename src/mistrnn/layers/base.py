"""The base of all layers: stacking, directions, lengths, resets, state and streams around one cell.

T time, B batch, I input, H hidden, M memory (the longest delay), N layers * directions.
"""

import inspect
import warnings
from collections.abc import Sequence
from typing import Any, ClassVar, overload

import torch
from torch import Tensor, nn
from torch.fx import Proxy
from torch.nn.utils.rnn import PackedSequence

from mistrnn.kernels.cell import Lags
from mistrnn.layers import backends, checks
from mistrnn.layers.backends import BACKENDS, Backend, CellRun, Weights
from mistrnn.layers.fx import trace_as_leaf
from mistrnn.layers.masks import RandomMasks
from mistrnn.layers.packed import packed_indices
from mistrnn.layers.recurrence import Step
from mistrnn.layers.sequence_mask import SequenceMask
from mistrnn.layers.signature import constructor_signature
from mistrnn.layers.state import Part, State, StateLayout
from mistrnn.layers.stream import Stream


class RecurrentLayer(RandomMasks):
    """The base of all layers, with the interface of torch.nn.LSTM. A layer adds its cell.

    Args:
        input_size: I, the number of inputs at each step.
        hidden_size: H, the number of units.
        num_layers: layers of the stack; each reads the output of the one below.
        bias: whether there are biases.
        batch_first: input and output are [B, T, ...] instead of [T, B, ...]; states keep their form.
        dropout: probability of dropping an output between two layers of the stack, in training.
        bidirectional: a second set of parameters reads each sequence backwards; outputs are concatenated.
        zoneout: probability that a unit keeps its previous value at a step; evaluation takes the expectation.
        recurrent_dropout: probability of dropping a unit from the operand of all recurrent matrices, for all steps of a call,
            in training.
        layer_norm: normalise the pre-activations of each gate; adds the parameter `gain_lk`.
        device: device of the parameters.
        dtype: dtype of the parameters.
    """

    _backend: Backend = "auto"
    __signature__: ClassVar[inspect.Signature | None]
    """The signature of a constructor with `**options`; torch.nn.utils.skip_init and saved estimators read it."""

    def __init_subclass__(cls, **options: Any) -> None:
        """Set the signature of the constructor."""
        super().__init_subclass__(**options)
        if "__init__" in vars(cls):
            above = next(base for base in cls.__mro__[1:] if issubclass(base, RecurrentLayer))
            cls.__signature__ = constructor_signature(cls, above)

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        *,
        zoneout: float = 0.0,
        recurrent_dropout: float = 0.0,
        layer_norm: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        nn.Module.__init__(self)
        name = type(self).__name__
        self.input_size = checks.positive_int(name, "input_size", input_size)
        self.hidden_size = checks.positive_int(name, "hidden_size", hidden_size)
        self.num_layers = checks.positive_int(name, "num_layers", num_layers)
        self.bias = checks.boolean(name, "bias", bias)
        self.batch_first = checks.boolean(name, "batch_first", batch_first)
        self.dropout = checks.probability(name, "dropout", dropout, below_one=False)
        self.bidirectional = checks.boolean(name, "bidirectional", bidirectional)
        self.zoneout = checks.probability(name, "zoneout", zoneout)
        self.recurrent_dropout = checks.probability(name, "recurrent_dropout", recurrent_dropout)
        self.layer_norm = checks.boolean(name, "layer_norm", layer_norm)
        if self.dropout and self.num_layers == 1:
            bases = type(self).__mro__[: type(self).__mro__.index(RecurrentLayer)]
            warnings.warn(
                f"{name}: dropout={dropout} has no effect, because it acts between layers and num_layers=1.",
                stacklevel=2 + sum("__init__" in vars(base) for base in bases),
            )
        if self.layer_norm and self.norm_blocks()[-1] == 1:
            raise ValueError(
                f"{name}: expected at least 2 units to normalise together, because one alone always becomes 0, got "
                f"hidden_size={hidden_size} in groups of 1."
            )
        self.create_parameters(device, dtype)

    @property
    def backend(self) -> Backend:
        """The backend: "auto", "fused" (compiled code) or "reference" (the loop of `reference.py`).

        "auto" takes the fused backend where the device and the dtype have one. "fused" raises an error where it is
        unavailable; streams on a GPU run on the reference in any case. Second derivatives, forward mode and torch.jit.trace
        always use the reference.
        """
        return self._backend

    @backend.setter
    def backend(self, backend: Backend) -> None:
        if backend not in BACKENDS:
            raise ValueError(
                f"{type(self).__name__}: expected backend to be one of {', '.join(BACKENDS)}, got {backend!r}."
            )
        self._backend = backend

    @property
    def form(self) -> str:
        """The backend by its name in version 0.1 ("plain" for "reference"). Deprecated; use `backend`."""
        _warn_of_form(type(self).__name__)
        return "plain" if self._backend == "reference" else self._backend

    @form.setter
    def form(self, form: str) -> None:
        _warn_of_form(type(self).__name__)
        self.backend = "reference" if form == "plain" else form  # type: ignore[assignment]

    def flatten_parameters(self) -> None:
        """Do nothing; models for torch.nn.LSTM call it, where it moves the weights into one buffer for cuDNN."""

    @overload
    def forward(
        self,
        input: Tensor,
        state: State | None = None,
        *,
        hx: State | None = None,
        lengths: Any = None,
        reset: Tensor | None = None,
    ) -> tuple[Tensor, State]: ...

    @overload
    def forward(
        self,
        input: PackedSequence,
        state: State | None = None,
        *,
        hx: State | None = None,
        lengths: None = None,
        reset: Tensor | None = None,
    ) -> tuple[PackedSequence, State]: ...

    def forward(
        self,
        input: Tensor | PackedSequence,
        state: State | None = None,
        *,
        hx: State | None = None,
        lengths: Tensor | Sequence[int] | None = None,
        reset: Tensor | None = None,
    ) -> tuple[Tensor | PackedSequence, State]:
        """Run whole sequences.

        Args:
            input: [T, B, I], or [B, T, I] with batch_first, or unbatched [T, I], or a PackedSequence.
            state: the state that an earlier call returned; zeros if None.
            hx: the same, by its name in torch.nn.
            lengths: [B] ints, the valid steps of each sequence; padding may hold any value.
            reset: bool, with the time and batch axes of the input ([T, B] for packed input, in the order before packing); the
                state of a sequence is cleared before a true step.

        Returns:
            output: the states h_t of the last layer, [T, B, directions * H] (in the form of the input); zero past a
                sequence's length.
            state: at each sequence's own last step, in the form that `state` takes.
        """
        if hx is not None:
            if state is not None:
                raise TypeError(f"{type(self).__name__}: expected one of state and hx, which mean the same, got both.")
            state = hx
        if isinstance(input, PackedSequence):
            return self._forward_packed(input, state, lengths, reset)
        if isinstance(input, Proxy):
            return trace_as_leaf(self, input, {"state": state, "lengths": lengths, "reset": reset})
        name, weights = type(self).__name__, self.all_cell_weights()
        like = self._like(weights)
        checks.check_input(name, input, self.input_size, self.batch_first, like)
        batched = input.dim() == 3
        if reset is not None:
            axes = ("[B, T]" if self.batch_first else "[T, B]") if batched else "[T]"
            checks.check_reset(name, reset, input.shape[:-1], axes, like)
        x = input if batched else input.unsqueeze(1)
        if batched and self.batch_first:
            x, reset = x.transpose(0, 1), reset.transpose(0, 1) if reset is not None else None
        elif reset is not None and not batched:
            reset = reset.unsqueeze(1)
        steps, batch = x.shape[:2]
        if lengths is not None:
            if not batched:
                raise ValueError(
                    f"{name}: expected no lengths, because unbatched input is one sequence; cut it instead."
                )
            lengths = checks.check_lengths(name, lengths, batch, steps, like.device)
        layout = self.state_layout(batch if batched else None)
        parts = layout.unpack(state, like)
        output, parts = self._run_stack(weights, x, parts, SequenceMask(steps, batch, like.device, lengths, reset))
        if not batched:
            output = output.squeeze(1)
        elif self.batch_first:
            output = output.transpose(0, 1)
        return output, layout.pack(parts)

    def _forward_packed(
        self, packed: PackedSequence, state: State | None, lengths: Any, reset: Tensor | None
    ) -> tuple[PackedSequence, State]:
        name, weights = type(self).__name__, self.all_cell_weights()
        like = self._like(weights)
        if lengths is not None:
            raise ValueError(f"{name}: expected no lengths, because a PackedSequence has its own.")
        checks.check_packed(name, packed.data, self.input_size, like)
        times, rows = packed_indices(packed, like.device)
        steps, batch = len(packed.batch_sizes), int(packed.batch_sizes[0])
        if reset is not None:
            checks.check_reset(name, reset, [steps, batch], "[T, B]", like)
        x = packed.data.new_zeros(steps, batch, self.input_size).index_put((times, rows), packed.data)
        counted = torch.zeros(steps, batch, dtype=torch.int64, device=like.device)
        counted = counted.index_put((times, rows), torch.ones_like(rows)).sum(0)
        layout = self.state_layout(batch)
        mask = SequenceMask(steps, batch, like.device, counted, reset)
        output, parts = self._run_stack(weights, x, layout.unpack(state, like), mask)
        repacked = PackedSequence(
            output[times, rows], packed.batch_sizes, packed.sorted_indices, packed.unsorted_indices
        )
        return repacked, layout.pack(parts)

    def _run_stack(
        self, weights: list[Weights], x: Tensor, parts: list[Part], mask: SequenceMask
    ) -> tuple[Tensor, list[Part]]:
        """Run all layers on x [T, B, I] from the state of each layer and direction; return the output and the states."""
        finals: list[Part] = []
        # Autocast may pass low-precision input. Casting up loses nothing: the products cast down again.
        x = x.to(weights[0]["weight_hh"].dtype)
        for layer in range(self.num_layers):
            if layer > 0 and self.dropout:
                x = self.drop_between_layers(x)
            outputs = []
            for direction in range(self.directions):
                index = layer * self.directions + direction
                probes = self._new_probes(index, mask.steps, mask.batch) if self._new_probes else ()
                output, final = self.run_cell(weights[index], direction, x, parts[index], mask, probes)
                outputs.append(output)
                finals.append(final)
            x = torch.cat(outputs, dim=-1) if self.bidirectional else outputs[0]
        return x, finals

    def run_cell(
        self,
        weights: Weights,
        direction: int,
        x: Tensor,
        part: Part,
        mask: SequenceMask,
        probes: tuple[Tensor, ...] = (),
        *,
        fused: bool | None = None,
    ) -> tuple[Tensor, Part]:
        """Run one layer in one direction on x [T, B, I]; return its output [T, B, H] and its state after the last step.

        fused chooses the backend; None leaves the choice to `takes_fused`.
        """
        initial, clock = (part[:-1], part[-1]) if self.cell.has_clock else (part, None)
        dropout, zoneout = self.draw_dropout(mask, x), self.draw_zoneout(mask, x)
        given = CellRun(weights, self.lags, x, initial, clock, mask, dropout, zoneout, direction == 1, probes)
        fused = self.takes_fused(weights["weight_hh"]) if fused is None else fused
        run = backends.run_fused if fused else backends.run_reference
        output, final = run(self.cell, given)
        if clock is not None:
            final += ((mask.reversed() if direction else mask).elapsed(clock),)
        return output, final

    def takes_fused(self, like: Tensor) -> bool:
        """Return whether to run the fused backend on parameters like this one; raise if it is required and unavailable."""
        return backends.takes_fused(type(self).__name__, self.cell, self._backend, like, self.why_not_fused(like))

    def why_not_fused(self, like: Tensor) -> str | None:
        """Return why there is no fused backend for parameters like this one, or None if there is."""
        return backends.why_not_fused(self.cell, like, self.hidden_size, self.lags, self.layer_norm)

    def step(self, weights: Weights, dropout: Tensor | None = None) -> Step:
        """Return the reference step of the cell; dropout is a mask [B, H] or None."""
        step: Step = self.cell.step(weights, dropout, self.lags)
        return step

    def _like(self, weights: list[Weights]) -> Tensor:
        """Return a parameter that has the dtype and the device of all."""
        like = weights[0]["weight_hh"]
        for own in weights:
            checks.check_parameters(type(self).__name__, own, like)
        return like

    def require_own_forward(self, caller: str) -> None:
        """Raise if a subclass overrides forward, for callers that run the steps without it."""
        if type(self).forward is not RecurrentLayer.forward or "forward" in vars(self):
            name = type(self).__name__
            raise TypeError(
                f"{caller}: expected a layer with the forward of mistrnn, because steps are run without calling it, got {name} "
                "with its own."
            )

    def stream(self, batch_size: int = 1, state: State | None = None) -> Stream:
        """Return a stream: called with the input of one step [B, I], it returns its output [B, H].

        Each call takes the same time and memory however long the stream runs, and the outputs equal those of a whole run. The
        stream copies the weights when it is made.
        """
        return Stream(self, checks.positive_int(type(self).__name__, "batch_size", batch_size), state)

    def state_layout(self, batch: int | None) -> StateLayout:
        """Return the shapes of the state for a batch size; None for unbatched input."""
        return StateLayout(
            owner=type(self).__name__,
            components=self.cell.state,
            sizes=self.state_sizes,
            has_clock=self.cell.has_clock,
            keeps_history=self.cell.keeps_history,
            count=self.num_layers * self.directions,
            memory=self.memory,
            batch=batch,
        )

    def extra_repr(self) -> str:
        """Return the arguments that differ from their defaults."""
        text = [str(self.input_size), str(self.hidden_size)]
        if self.num_layers != 1:
            text.append(f"num_layers={self.num_layers}")
        if self.cell.lags is not Lags.NONE:
            text.append(f"{self.cell.lags.value}={list(self.lags)}")
        text.extend(self.own_arguments())
        if not self.bias:
            text.append("bias=False")
        for name in ("batch_first", "dropout", "bidirectional", "zoneout", "recurrent_dropout", "layer_norm"):
            if value := getattr(self, name):
                text.append(f"{name}={value}")
        return ", ".join(text)

    def own_arguments(self) -> list[str]:
        """Return further arguments of the layer for the repr, as `name=value`."""
        return []


def _warn_of_form(owner: str) -> None:
    warnings.warn(
        f'{owner}: `form` is deprecated and goes in 0.4; use `backend` ("reference" instead of "plain").',
        DeprecationWarning,
        stacklevel=3,
    )
