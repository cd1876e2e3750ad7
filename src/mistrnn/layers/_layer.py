"""What every layer shares: arguments, parameters, stacking, directions, lengths, resets, state and streaming.

T time, B batch, I input, H hidden, G rows of pre-activations, M memory (the longest delay), N layers * directions.
"""

import contextlib
import inspect
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar, overload

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.nn.utils.parametrize import is_parametrized
from torch.nn.utils.rnn import PackedSequence

from mistrnn.kernels import cpu, cuda
from mistrnn.layers import _checks, _forms
from mistrnn.layers._forms import FORMS, Form, Run, Weights
from mistrnn.layers._hooked import put_hooked, renew_hooked
from mistrnn.layers._packed import places
from mistrnn.layers._recurrence import Step, Zoneout, linear
from mistrnn.layers._signature import shown_signature
from mistrnn.layers._state import State, StateForm
from mistrnn.layers._stream import Stream
from mistrnn.layers._timeline import Timeline

NewProbes = Callable[[int, int, int], tuple[Tensor, ...]]
"""(layer * directions + direction, T, B) -> zeros [T, B, H] for each component of the state; see `probed`."""


class RecurrentLayer(nn.Module, ABC):
    """The base of all layers, in the habits of torch.nn.LSTM; a layer adds its row blocks, its state and its step.

    Args:
        input_size: I, the number of inputs at each step.
        hidden_size: H, the number of units.
        num_layers: how many layers stand on each other, each reading the output of the one below.
        bias: whether there are biases.
        batch_first: input and output are [B, T, ...] instead of [T, B, ...] (states keep their form).
        dropout: probability of dropping an output between two layers of the stack, in training.
        bidirectional: a second set of parameters reads each sequence backwards; outputs are concatenated.
        zoneout: probability that a unit keeps its previous value at a step; its expectation is taken in evaluation.
        recurrent_dropout: probability of dropping a unit from everything that recurrent matrices read, for all steps
            of a call, in training.
        layer_norm: normalise the pre-activations of each gate; adds the parameter `gain_lk`.
        device: where the parameters are made.
        dtype: their type.
    """

    state_components: ClassVar[tuple[str, ...]] = ("h",)
    """The tensors that a step reads and writes."""
    has_clock: ClassVar[bool] = False
    """Whether the step needs to know how long ago its sequence began."""
    keeps_history: ClassVar[bool] = False
    """Whether the state shows its last M steps as an axis of its own."""
    fused_name: ClassVar[str | None] = None
    """The registered operator of the layer's compiled loop; None if it has only the plain form."""
    _form: Form = "auto"
    _new_probes: NewProbes | None = None
    """While derivatives with respect to the states are computed: the zeros that are added to them."""
    _uniform_numbers: Iterator[Tensor] | None = None
    """The numbers that masks are drawn from, inside `_drawing_from`; torch's generator if None."""
    __signature__: ClassVar[inspect.Signature | None]
    """What the class takes; see `__init_subclass__`."""

    def __init_subclass__(cls, **options: Any) -> None:
        """Let a constructor that hands on `*arguments` and `**options` show what it takes; None if Python finds that out.

        Those who make a layer anew read it: torch.nn.utils.skip_init, and estimators that were saved.
        """
        super().__init_subclass__(**options)
        if "__init__" in vars(cls):
            above = next(base for base in cls.__mro__[1:] if issubclass(base, RecurrentLayer))
            cls.__signature__ = shown_signature(cls, above)

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
        super().__init__()
        name = type(self).__name__
        self.input_size = _checks.positive_int(name, "input_size", input_size)
        self.hidden_size = _checks.positive_int(name, "hidden_size", hidden_size)
        self.num_layers = _checks.positive_int(name, "num_layers", num_layers)
        self.bias = _checks.yes_or_no(name, "bias", bias)
        self.batch_first = _checks.yes_or_no(name, "batch_first", batch_first)
        self.dropout = _checks.probability(name, "dropout", dropout, below_one=False)
        self.bidirectional = _checks.yes_or_no(name, "bidirectional", bidirectional)
        self.zoneout = _checks.probability(name, "zoneout", zoneout)
        self.recurrent_dropout = _checks.probability(name, "recurrent_dropout", recurrent_dropout)
        self.layer_norm = _checks.yes_or_no(name, "layer_norm", layer_norm)
        if self.dropout and self.num_layers == 1:
            own_constructor = type(self).__init__ is not RecurrentLayer.__init__
            warnings.warn(
                f"{name}: dropout={dropout} has no effect, because it acts between layers and num_layers=1.",
                stacklevel=3 if own_constructor else 2,
            )
        together = self._row_blocks()[-1]
        if self.layer_norm and together == 1:
            raise ValueError(
                f"{name}: expected at least 2 units to normalise together, because one alone always becomes 0, got "
                f"hidden_size={hidden_size} in groups of 1."
            )
        self._short_names = tuple(self._parameter_shapes(self.input_size))
        for layer in range(self.num_layers):
            layer_inputs = self.input_size if layer == 0 else self.output_size
            for direction in range(self.directions):
                for short, shape in self._parameter_shapes(layer_inputs).items():
                    parameter = nn.Parameter(torch.empty(shape, device=device, dtype=dtype))
                    self.register_parameter(short + suffix_of(layer, direction), parameter)
        self.reset_parameters()

    @property
    def form(self) -> Form:
        """How the layer computes: "fused" (the compiled loop), "plain" (`reference.py`), or "auto".

        "auto" takes the fused form where there is one for the device and the dtype. "fused" is an error where it cannot
        serve, never a silent fallback (but for streams on a GPU, whose single steps are plain). Second derivatives and
        forward mode are taken from the plain form by themselves, and with "auto" so is what torch.jit.trace records.
        """
        return self._form

    @form.setter
    def form(self, form: Form) -> None:
        if form not in FORMS:
            raise ValueError(f"{type(self).__name__}: expected form to be one of {', '.join(FORMS)}, got {form!r}.")
        self._form = form

    @property
    def directions(self) -> int:
        """2 if bidirectional, else 1."""
        return 2 if self.bidirectional else 1

    @property
    def draws_at_random(self) -> bool:
        """Whether a call draws masks: in training, with dropout or zoneout."""
        return self.training and bool(self.zoneout or self.recurrent_dropout or (self.dropout and self.num_layers > 1))

    @property
    def output_size(self) -> int:
        """The features of the output: directions * H."""
        return self.directions * self.hidden_size

    @abstractmethod
    def _row_blocks(self) -> list[int]:
        """Return the sizes of the row blocks of the parameters, gate after gate; they sum to G."""

    @abstractmethod
    def _step(self, weights: Weights, dropout: Tensor | None) -> Step:
        """Return the step of `reference.py` for one layer and direction; dropout is the mask [B, H] or None."""

    def _memory(self) -> int:
        """Return M, how many past states a step reads."""
        return 1

    def _parameter_shapes(self, layer_inputs: int) -> dict[str, tuple[int, ...]]:
        """Return the parameters of one layer in one direction by short name."""
        rows = sum(self._row_blocks())
        shapes: dict[str, tuple[int, ...]] = {
            "weight_ih": (rows, layer_inputs),
            "weight_hh": (rows, self.hidden_size),
        }
        if self.bias:
            shapes["bias"] = (rows,)
        if self.layer_norm:
            shapes["gain"] = (rows,)
        return shapes

    @classmethod
    def hidden_size_step(cls, **options: Any) -> int:
        """Return what a hidden size must be a multiple of, given the layer's other arguments."""
        return 1

    def reset_parameters(self) -> None:
        """Draw the parameters anew, as in the paper: matrices N(0, 1/H), biases 0 (gains of layer norm 1)."""
        if next(self.parameters()).is_meta:
            return  # there is nothing to draw into, and torch would load its compiler to find that out
        with torch.no_grad():
            for layer in range(self.num_layers):
                for direction in range(self.directions):
                    for short, value in self._weights(layer, direction).items():
                        name = short + suffix_of(layer, direction)
                        initial = self._initial(short, value)
                        if is_parametrized(self, name):
                            setattr(self, name, initial)
                        elif not put_hooked(self, name, initial):
                            value.copy_(initial)

    def _initial(self, short: str, like: Tensor) -> Tensor:
        """Return a start value for the parameter of this short name."""
        if short.startswith("weight"):
            drawn: Tensor = torch.randn_like(like) * self.hidden_size**-0.5
            return drawn
        return torch.ones_like(like) if short == "gain" else torch.zeros_like(like)

    def flatten_parameters(self) -> None:
        """Do nothing; it is here because models that were written for torch.nn.LSTM call it.

        torch lays out its weights in one piece of memory for cuDNN. Our kernels read them wherever they are.
        """

    def parameter_count(self) -> int:
        """Return the number of weights that the layer really has."""
        return sum(parameter.numel() for parameter in self.parameters())

    @overload
    def forward(
        self, input: Tensor, state: State | None = None, *, lengths: Any = None, reset: Tensor | None = None
    ) -> tuple[Tensor, State]: ...

    @overload
    def forward(
        self,
        input: PackedSequence,
        state: State | None = None,
        *,
        lengths: None = None,
        reset: Tensor | None = None,
    ) -> tuple[PackedSequence, State]: ...

    def forward(
        self,
        input: Tensor | PackedSequence,
        state: State | None = None,
        *,
        lengths: Tensor | Sequence[int] | None = None,
        reset: Tensor | None = None,
    ) -> tuple[Tensor | PackedSequence, State]:
        """Run whole sequences.

        Args:
            input: [T, B, I], or [B, T, I] with batch_first, or unbatched [T, I], or a PackedSequence.
            state: what an earlier call returned, to go on from there; zeros if left out.
            lengths: [B] ints, how many steps of each sequence are real; the rest is padding and may hold anything.
            reset: bool, with the time and batch axes of the input ([T, B] for packed input, in the order before packing);
                where true, that sequence starts afresh.

        Returns:
            output: the states h_t of the last layer, [T, B, directions * H] (in the form of the input); zero past a
                sequence's length.
            state: at each sequence's own last step, in the form that `state` takes.
        """
        if isinstance(input, PackedSequence):
            return self._forward_packed(input, state, lengths, reset)
        name, weights = type(self).__name__, self._all_weights()
        like = self._like(weights)
        _checks.check_input(name, input, self.input_size, self.batch_first, like)
        batched = input.dim() == 3
        if reset is not None:
            axes = ("[B, T]" if self.batch_first else "[T, B]") if batched else "[T]"
            _checks.check_reset(name, reset, input.shape[:-1], axes, like)
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
            lengths = _checks.check_lengths(name, lengths, batch, steps, like.device)
        form = self._state_form(batch if batched else None)
        parts = form.unpack(state, like)
        output, parts = self._run(weights, x, parts, Timeline(steps, batch, like.device, lengths, reset))
        if not batched:
            output = output.squeeze(1)
        elif self.batch_first:
            output = output.transpose(0, 1)
        return output, form.pack(parts)

    def _forward_packed(
        self, packed: PackedSequence, state: State | None, lengths: Any, reset: Tensor | None
    ) -> tuple[PackedSequence, State]:
        name, weights = type(self).__name__, self._all_weights()
        like = self._like(weights)
        if lengths is not None:
            raise ValueError(f"{name}: expected no lengths, because a PackedSequence brings its own.")
        _checks.check_packed(name, packed.data, self.input_size, like)
        times, rows = places(packed, like.device)
        steps, batch = len(packed.batch_sizes), int(packed.batch_sizes[0])
        if reset is not None:
            _checks.check_reset(name, reset, [steps, batch], "[T, B]", like)
        x = packed.data.new_zeros(steps, batch, self.input_size).index_put((times, rows), packed.data)
        counted = torch.zeros(steps, batch, dtype=torch.int64, device=like.device)
        counted = counted.index_put((times, rows), torch.ones_like(rows)).sum(0)
        form = self._state_form(batch)
        timeline = Timeline(steps, batch, like.device, counted, reset)
        output, parts = self._run(weights, x, form.unpack(state, like), timeline)
        repacked = PackedSequence(
            output[times, rows], packed.batch_sizes, packed.sorted_indices, packed.unsorted_indices
        )
        return repacked, form.pack(parts)

    def _run(
        self, weights: list[Weights], x: Tensor, parts: list[tuple[Tensor, ...]], timeline: Timeline
    ) -> tuple[Tensor, list[tuple[Tensor, ...]]]:
        """Run the stack on x [T, B, I] from the unpacked state of each layer and direction, and return the same."""
        finals: list[tuple[Tensor, ...]] = []
        # Autocast may hand on low-precision input; a product that is to be shortened shortens it again without loss.
        x = x.to(weights[0]["weight_hh"].dtype)
        for layer in range(self.num_layers):
            if layer > 0 and self.dropout:
                x = F.dropout(x, self.dropout, self.training)
            outputs = []
            for direction in range(self.directions):
                index = layer * self.directions + direction
                probes = self._new_probes(index, timeline.steps, timeline.batch) if self._new_probes else ()
                output, final = self._run_one(weights[index], direction, x, parts[index], timeline, probes)
                outputs.append(output)
                finals.append(final)
            x = torch.cat(outputs, dim=-1) if self.bidirectional else outputs[0]
        return x, finals

    def _run_one(
        self,
        weights: Weights,
        direction: int,
        x: Tensor,
        part: tuple[Tensor, ...],
        timeline: Timeline,
        probes: tuple[Tensor, ...] = (),
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Run one layer in one direction; part is its [M, B, H] per component, and the clock [B] if it has one."""
        initial, clock = (part[:-1], part[-1]) if self.has_clock else (part, None)
        dropout, zoneout = self._draw_dropout(timeline, x), self._draw_zoneout(timeline, x)
        given = Run(weights, x, initial, clock, timeline, dropout, zoneout, direction == 1, probes)
        if self._takes_fused(weights["weight_hh"]):
            assert self.fused_name is not None
            output, final = _forms.fused(self.fused_name, self._delays(), given)
        else:
            output, final = _forms.plain(self._step(weights, dropout), self._project, given)
        if clock is not None:
            final += ((timeline.reversed() if direction else timeline).elapsed(clock),)
        return output, final

    def _takes_fused(self, like: Tensor) -> bool:
        """Whether to run the fused form, with parameters like this one; an error if it is wanted and cannot be."""
        if self._form == "plain":
            return False
        reason = self._why_not_fused(like)
        if reason is None:  # forward mode, at any level of torch.func, goes through the plain form
            return forward_ad._current_level < 0
        if self._form == "fused":
            raise RuntimeError(
                f'{type(self).__name__}: expected the fused form to serve, because form="fused", but {reason}.'
            )
        recorded = torch.compiler.is_compiling() or _is_traced()
        if self._has_fused_form() and like.device.type != "meta" and not recorded:
            _tell_once(f"{type(self).__name__} runs in its plain form, which is slower: {reason}.")
        return False

    def _has_fused_form(self) -> bool:
        """Whether the compiled loop computes this layer; not a subclass's that has a step or a projection of its own."""
        owner: Any = next(kind for kind in type(self).__mro__ if "fused_name" in vars(kind))
        same = type(self)._step is owner._step and type(self)._project is owner._project
        return self.fused_name is not None and same

    def _why_not_fused(self, like: Tensor) -> str | None:
        """Return why there is no fused form for parameters like this one; None if there is."""
        if not self._has_fused_form():
            return "this layer has only the plain form"
        if _is_traced():
            return "torch.jit.trace, which is recording, does not see what the compiled code computes"
        assert self.fused_name is not None
        if like.device.type == "cpu":
            return cpu.unavailable(self.fused_name, like.dtype)
        if like.device.type == "cuda":
            sizes = self.hidden_size, self._delays(), self.layer_norm
            return cuda.unavailable(self.fused_name, like.dtype, like.device, *sizes)
        return f"it runs on the CPU and on NVIDIA GPUs, and the parameters are on {like.device}"

    def _delays(self) -> Sequence[int]:
        """Return the numbers that the fused form is given: delays or periods."""
        return ()

    def _all_weights(self) -> list[Weights]:
        """Return the parameters of every layer and direction, each read once (a parametrisation computes them)."""
        return [
            self._weights(layer, direction) for layer in range(self.num_layers) for direction in range(self.directions)
        ]

    def _current_weights(self) -> list[Weights]:
        """Return the same outside of a call, when hooks have not yet computed what they compute."""
        renew_hooked(self)
        return self._all_weights()

    def _weights(self, layer: int, direction: int) -> Weights:
        suffix = suffix_of(layer, direction)
        return {short: getattr(self, short + suffix) for short in self._short_names}

    def _refuse_own_forward(self, by: str) -> None:
        """Raise if a subclass has a forward of its own: whoever takes the steps one by one does not call it."""
        if type(self).forward is not RecurrentLayer.forward or "forward" in vars(self):
            name = type(self).__name__
            raise TypeError(
                f"{by}: expected a layer whose forward is mistrnn's own, because its steps are taken without it, got {name} "
                "with another."
            )

    def _like(self, weights: list[Weights]) -> Tensor:
        """Return a parameter whose dtype and device are those of all."""
        like = weights[0]["weight_hh"]
        for own in weights:
            _checks.check_parameters(type(self).__name__, own, like)
        return like

    def _project(self, x: Tensor, weights: Weights) -> Tensor:
        """Return the input's share of all pre-activations, [..., G]; with layer norm the bias comes after the norm."""
        return linear(x, weights["weight_ih"], None if self.layer_norm else weights.get("bias"))

    def _draw_dropout(self, timeline: Timeline, like: Tensor) -> Tensor | None:
        """Return the recurrent dropout mask [B, H] of one call, scaled to keep the expectation."""
        if not self.recurrent_dropout or not self.training:
            return None
        keep = self._uniform((timeline.batch, self.hidden_size), like) >= self.recurrent_dropout
        return keep.to(like.dtype) / (1 - self.recurrent_dropout)

    def _draw_zoneout(self, timeline: Timeline, like: Tensor) -> Zoneout | None:
        """Return the zoneout masks [T, B, H] of one call, or in evaluation the probability."""
        if not self.zoneout:
            return None
        if not self.training:
            return float(self.zoneout)  # somebody may have set it to a number of NumPy's or torch's
        shape = (timeline.steps, timeline.batch, self.hidden_size)
        return tuple(self._uniform(shape, like) < self.zoneout for _ in self.state_components)

    def _uniform(self, shape: tuple[int, ...], like: Tensor) -> Tensor:
        return torch.rand(shape, device=like.device) if self._uniform_numbers is None else next(self._uniform_numbers)

    def _uniform_shapes(self, steps: int, batch: int) -> list[tuple[int, ...]]:
        """Return the shapes of the uniform numbers that a call in training draws for its masks, in order."""
        own: list[tuple[int, ...]] = [(batch, self.hidden_size)] if self.recurrent_dropout else []
        if self.zoneout:
            own += [(steps, batch, self.hidden_size)] * len(self.state_components)
        return own * (self.num_layers * self.directions)

    @contextlib.contextmanager
    def _drawing_from(self, numbers: Iterator[Tensor]) -> Iterator[None]:
        """Inside the `with`, take the numbers that masks are made from of an iterator; see `_uniform_shapes`."""
        before, self._uniform_numbers = self._uniform_numbers, numbers
        try:
            yield
        finally:
            self._uniform_numbers = before

    @contextlib.contextmanager
    def probed(self, new_probes: NewProbes) -> Iterator[None]:
        """Put zeros beside all states inside the `with`: their gradients are the full derivatives by these states.

        new_probes(k, T, B) returns, for layer and direction k, a tensor [T, B, H] for each component of the state, or an
        empty tuple. Nobody reads the values, so that one zero may be expanded; time runs as in the input.
        """
        before, self._new_probes = self._new_probes, new_probes
        try:
            yield
        finally:
            self._new_probes = before

    def stream(self, batch_size: int = 1, state: State | None = None) -> Stream:
        """Return a stream: called with the input of one step [B, I], it returns its output [B, H].

        Each call takes the same time and memory however long the stream runs, and the outputs equal those of a
        whole run. The stream reads the weights as they are when it is made.
        """
        return Stream(self, _checks.positive_int(type(self).__name__, "batch_size", batch_size), state)

    def _state_form(self, batch: int | None) -> StateForm:
        return StateForm(
            owner=type(self).__name__,
            components=self.state_components,
            has_clock=self.has_clock,
            count=self.num_layers * self.directions,
            memory=self._memory(),
            keeps_history=self.keeps_history,
            batch=batch,
            hidden=self.hidden_size,
        )

    def extra_repr(self) -> str:
        """Return the arguments that differ from their defaults."""
        text = [str(self.input_size), str(self.hidden_size)]
        if self.num_layers != 1:
            text.append(f"num_layers={self.num_layers}")
        text.extend(self._extra_arguments())
        if not self.bias:
            text.append("bias=False")
        for name in ("batch_first", "dropout", "bidirectional", "zoneout", "recurrent_dropout", "layer_norm"):
            if value := getattr(self, name):
                text.append(f"{name}={value}")
        return ", ".join(text)

    def _extra_arguments(self) -> list[str]:
        """Return the layer's own arguments for the repr, as `name=value`."""
        return []


_told: set[str] = set()


def _tell_once(text: str) -> None:
    if text not in _told:
        _told.add(text)
        warnings.warn(text, stacklevel=2)


def _is_traced() -> bool:
    """Whether torch.jit.trace is recording; torch.compile cannot be asked that, and need not."""
    return not torch.compiler.is_compiling() and torch._C._is_tracing()


def suffix_of(layer: int, direction: int) -> str:
    """Return how the names of a layer's parameters end."""
    return f"_l{layer}" + ("_reverse" if direction else "")
