"""A network for whole recordings and live signals: residual blocks around any of the layers, pooling, a linear head.

    h = linear(standardised input)
    each block:  u = conv(norm(h))
                 h = h + dropout(linear(u + layer(u)))
                 h = h + dropout(gated linear unit(norm(h)))
    scores = linear(pooling(norm(h)))          or linear(norm(h)) at every step

T time, B batch, C channels of the input, W width (hidden_size), K scores.
"""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from mistrnn.layers import RecurrentLayer, checks, layer_class
from mistrnn.layers.initialization import initialize
from mistrnn.layers.names import check_options, single_bias
from mistrnn.layers.state import state_from_tensors, state_tensors
from mistrnn.models._frames import BatchStatistics, DepthwiseConv, ForwardPass, FrameNorm, GatedUnit
from mistrnn.models._pooling import Pooling
from mistrnn.models.standardisation import StandardisedModule

if TYPE_CHECKING:
    from mistrnn.models._stream import NetworkStream

NetworkState = tuple[Tensor, ...]
"""Per block the last inputs of its convolution and the layer's state, then the pooling's; see `SequenceNetwork.state_names`."""


class ResidualBlock(nn.Module):
    """A recurrent layer behind a short convolution, and a gated linear unit, each normalised and on a residual branch."""

    def __init__(self, layer: RecurrentLayer, *, kernel_size: int, dropout: float) -> None:
        super().__init__()
        width = layer.input_size
        self.dropout = dropout
        self.layer_norm, self.unit_norm = FrameNorm(width), FrameNorm(width)
        self.conv = DepthwiseConv(width, kernel_size, centred=layer.bidirectional) if kernel_size > 1 else None
        self.layer = layer
        self.projection = nn.Linear(layer.output_size, width)
        self.unit = GatedUnit(width)

    def forward(
        self, x: Tensor, state: tuple[Tensor, ...], current: ForwardPass, *, keep_state: bool
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Transform x [T, B, W]; the state is the convolution's history and the tensors of the layer's, or nothing."""
        y, history = self.layer_norm(x, current), None
        layer_state = state
        if self.conv is not None:
            history, *rest = state or (None,)
            y, history = self.conv(y, history, current, keep_history=keep_state)
            layer_state = tuple(rest)
        with (
            contextlib.nullcontext()
            if current.layer_numbers is None
            else self.layer.drawing_from(current.layer_numbers)
        ):
            before = state_from_tensors(layer_state, self.layer.cell.keeps_history) if layer_state else None
            output, after = self.layer(y, before, lengths=current.lengths)
        y = torch.cat([y] * self.layer.directions, -1)  # around the layer: so much of the past is local
        x = self._residual(x, self.projection(y + output), current)
        x = self._residual(x, self.unit(self.unit_norm(x, current)), current)
        kept = () if history is None else (history,)
        return x, (*kept, *state_tensors(after)) if keep_state else ()

    def reset_parameters(self) -> None:
        """Draw everything but the layer's parameters."""
        for module in (self.layer_norm, self.unit_norm, self.conv, self.projection, self.unit):
            if module is not None:
                module.reset_parameters()

    @property
    def state_names(self) -> tuple[str, ...]:
        """The names of the tensors of the state."""
        own = self.layer.cell.state + (("clock",) if self.layer.cell.has_clock else ())
        return (("conv",) if self.conv is not None else ()) + own

    def initial_state(self, batch_size: int) -> tuple[Tensor, ...]:
        """Return the state before the first step."""
        like = self.projection.weight.detach()
        layout = self.layer.state_layout(batch_size)
        layer_state = state_tensors(layout.pack(layout.zeros(like)))
        if self.conv is None:
            return layer_state
        return like.new_zeros(self.conv.kernel_size - 1, batch_size, like.size(0)), *layer_state

    def _residual(self, x: Tensor, branch: Tensor, current: ForwardPass) -> Tensor:
        if not self.training or not self.dropout:
            return x + branch
        if current.dropout_masks is not None:
            mask = next(current.dropout_masks)
        else:
            mask = (torch.rand_like(x[0]) >= self.dropout) / (1 - self.dropout)
        return torch.addcmul(x, branch, mask.to(x.dtype))  # one mask for all steps


_OWN_OPTIONS = ("num_layers", "batch_first", "dropout", "bidirectional", "proj_size", "device", "dtype")
"""Options of layers that a network sets itself."""


class SequenceNetwork(StandardisedModule):
    """Scores for each sequence [B, K], or for each of its steps [T, B, K], from what was measured, [T, B, C].

    Args:
        input_size: C, the channels of the input.
        output_size: K, the scores.
        layer: a layer's name or class.
        hidden_size: W, the width of the network and the units of each layer.
        num_layers: blocks on top of each other.
        kernel_size: steps that the convolution of each block reads; 1 for none.
        pooling: what the scores of a sequence are read from: some of "last", "mean" and "max", joined with +. None for
            scores at every step.
        dropout: probability of dropping a channel of a residual branch, one mask for all steps of a sequence.
        bidirectional: read each sequence in both directions; such a network cannot stream.
        layer_options: other arguments of the layer by name, such as delays.
        initialization: how the layers start; see `mistrnn.layers.initialization`.
        steps: the length of the sequences to expect, for starts that depend on it.
        arcsinh: whether some channels have heavy tails and are transformed before they are standardised.
        device: where the parameters are made.
        dtype: their type.

    The input is standardised as `standardisation` says (`mistrnn.models.Standardisation`): (input - mean) / scale. The buffers
    `mean` and `scale` [C] are 0 and 1 until they are set.

    >>> network = SequenceNetwork(2, 4, hidden_size=8)
    >>> scores, state = network(torch.randn(9, 3, 2), lengths=torch.tensor([9, 5, 7]))
    >>> scores.shape
    torch.Size([3, 4])
    """

    def __init__(
        self,
        input_size: int,
        output_size: int,
        *,
        layer: str | type[RecurrentLayer] = "mist",
        hidden_size: int = 32,
        num_layers: int = 2,
        kernel_size: int = 15,
        pooling: str | Sequence[str] | None = "mean+max",
        dropout: float = 0.1,
        bidirectional: bool = False,
        layer_options: Mapping[str, Any] | None = None,
        initialization: str = "open",
        steps: int | None = None,
        arcsinh: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        name = type(self).__name__
        self.input_size = checks.positive_int(name, "input_size", input_size)
        self.output_size = checks.positive_int(name, "output_size", output_size)
        self.hidden_size = checks.positive_int(name, "hidden_size", hidden_size)
        self.num_layers = checks.positive_int(name, "num_layers", num_layers)
        self.kernel_size = checks.positive_int(name, "kernel_size", kernel_size)
        self.dropout = checks.probability(name, "dropout", dropout)
        self.bidirectional = checks.boolean(name, "bidirectional", bidirectional)
        self.initialization, self.steps = initialization, steps
        kind = layer_class(layer) if isinstance(layer, str) else layer
        options = dict(layer_options or {})
        check_options(kind, options)
        own = [option for option in _OWN_OPTIONS if option in options]
        if own:
            raise ValueError(f"{name}: expected layer_options without {own[0]}, which is the network's own.")
        self.layer_options = options
        with torch.device(device) if device is not None else contextlib.nullcontext():
            self.embedding = nn.Linear(self.input_size, self.hidden_size)
            self.blocks = nn.ModuleList(
                ResidualBlock(
                    kind(
                        self.hidden_size,
                        self.hidden_size,
                        bidirectional=self.bidirectional,
                        **single_bias(kind, options),
                    ),
                    kernel_size=self.kernel_size,
                    dropout=self.dropout,
                )
                for _ in range(self.num_layers)
            )
            self.norm = FrameNorm(self.hidden_size)
            self.pooling = None if pooling is None else Pooling(pooling)
            pooled = self.hidden_size * (1 if self.pooling is None else len(self.pooling.kinds))
            self.head = nn.Linear(pooled, self.output_size)
            self.to(dtype if dtype is not None else torch.get_default_dtype())
            self.register_standardisation(self.input_size, arcsinh=checks.boolean(name, "arcsinh", arcsinh))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw all parameters."""
        for layer in self.recurrent_layers():
            initialize(layer, self.initialization, steps=self.steps)
        self.embedding.reset_parameters()
        self.head.reset_parameters()
        with torch.no_grad():
            self.head.weight.mul_(0.5)
            self.head.bias.zero_()
        for block in self.blocks:
            assert isinstance(block, ResidualBlock)
            block.reset_parameters()
        self.norm.reset_parameters()

    def set_dropout(self, probability: float) -> None:
        """Change the dropout of all residual branches."""
        self.dropout = checks.probability(type(self).__name__, "dropout", probability)
        for block in self.blocks:
            assert isinstance(block, ResidualBlock)
            block.dropout = self.dropout

    def recurrent_layers(self) -> list[RecurrentLayer]:
        """Return the recurrent layer of each block."""
        return [block.layer for block in self.blocks]  # type: ignore[misc]

    def uniform_shapes(self, steps: int, batch_size: int) -> list[tuple[int, ...]]:
        """Return the shapes of the uniform numbers that the recurrent layers draw for their masks in training, in order."""
        draws = [draw for layer in self.recurrent_layers() for draw in layer.mask_draws()]
        return [draw.shape(steps, batch_size) for draw in draws]

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments that make another network of this shape."""
        return {
            "input_size": self.input_size,
            "output_size": self.output_size,
            "layer": type(self.recurrent_layers()[0]),
            "hidden_size": self.hidden_size,
            "num_layers": self.num_layers,
            "kernel_size": self.kernel_size,
            "pooling": None if self.pooling is None else "+".join(self.pooling.kinds),
            "dropout": self.dropout,
            "bidirectional": self.bidirectional,
            "layer_options": self.layer_options,
            "initialization": self.initialization,
            "arcsinh": self.arcsinh is not None,
        }

    @property
    def every_step(self) -> bool:
        """Whether the scores are those of every step."""
        return self.pooling is None

    def parameter_count(self) -> int:
        """Return the number of weights; severed connections of Clockwork do not count."""
        severed = sum(
            sum(weight.numel() for weight in layer.parameters()) - layer.parameter_count()
            for layer in self.recurrent_layers()
        )
        return sum(parameter.numel() for parameter in self.parameters()) - severed

    def standardised(self, input: Tensor) -> Tensor:
        """Return the input as the embedding reads it."""
        return self.standardisation(input).to(self.embedding.weight.dtype)

    def forward(
        self,
        input: Tensor,
        state: NetworkState | None = None,
        *,
        lengths: Tensor | None = None,
        every_step: bool | None = None,
        keep_state: bool = True,
        dropout_masks: Sequence[Tensor] | None = None,
        layer_numbers: Sequence[Tensor] | None = None,
        statistics: BatchStatistics | None = None,
        standardised: bool = False,
    ) -> tuple[Tensor, NetworkState]:
        """Return the scores and the state to go on from.

        Args:
            input: [T, B, C].
            state: the state that an earlier call returned, to go on from there; one direction only.
            lengths: [B] valid steps of each sequence; padding may hold anything.
            every_step: return [T, B, K] as if the sequences ended at each step; the network's own setting if None. Only
                from the beginning of a sequence where the network pools.
            keep_state: False saves the work for the state; an empty one is returned.
            dropout_masks: masks [B, W] of the residual branches in training, two per block; drawn if None.
            layer_numbers: uniform numbers for zoneout and recurrent dropout in training, in the shapes of
                `uniform_shapes`; drawn if None.
            statistics: a list that collects mean and variance of each norm in training, in place of an update of the
                running averages; `update_statistics` takes them.
            standardised: whether the input is standardised already.
        """
        self._check(input, lengths, state)
        current = ForwardPass.of(input, lengths)
        current.dropout_masks = None if dropout_masks is None else iter(dropout_masks)
        current.layer_numbers = None if layer_numbers is None else iter(layer_numbers)
        current.statistics = statistics
        x = input.to(self.embedding.weight.dtype) if standardised else self.standardised(input)
        x = self.embedding(current.clear_padding(x))
        parts = self._unpacked(state)
        after: list[Tensor] = []
        for block, part in zip(self.blocks, parts, strict=False):
            x, new = block(x, part, current, keep_state=keep_state)
            after.extend(new)
        x = self.norm(x, current)
        every_step = self.every_step if every_step is None else every_step
        if self.pooling is None:
            if not every_step:
                x, _ = Pooling("last")(x, None, current)
        elif every_step:
            x = self.pooling.every_step(x)
        else:
            x, pooled = self.pooling(x, parts[-1] or None, current)
            after.extend(pooled if keep_state else ())
        return self.head(x), tuple(after)

    def update_statistics(self, statistics: BatchStatistics) -> None:
        """Update the running averages of the norms from what a forward pass has collected."""
        for norm, (mean, variance) in zip(self.norms(), statistics, strict=True):
            norm.update(mean, variance)

    def norms(self) -> Iterator[FrameNorm]:
        """Return the norms in the order of a forward pass."""
        for block in self.blocks:
            assert isinstance(block, ResidualBlock)
            yield from (block.layer_norm, block.unit_norm)
        yield self.norm

    def stream(self, batch_size: int = 1, state: NetworkState | None = None) -> "NetworkStream":
        """Return a stream: called with the rows of one step [B, C], it returns the scores [B, K] if the sequences ended there.

        Each call takes the same time and memory however long the stream runs. The stream reads the weights as they are when
        it is made; one direction and evaluation mode only.

        Args:
            batch_size: B, the sequences that run side by side.
            state: where to go on from; the beginning if None.
        """
        from mistrnn.models._stream import NetworkStream  # which imports this file

        return NetworkStream(self, batch_size, state)

    def initial_state(self, batch_size: int) -> NetworkState:
        """Return the state before the first step."""
        like = self.embedding.weight.detach()
        nothing = like.new_zeros(0, batch_size, self.hidden_size)
        current = ForwardPass.of(nothing, None)
        found: list[Tensor] = []
        for block in self.blocks:
            assert isinstance(block, ResidualBlock)
            found.extend(block.initial_state(batch_size))
        if self.pooling is not None:
            found.extend(self.pooling(nothing, None, current)[1])
        return tuple(found)

    @property
    def state_names(self) -> tuple[str, ...]:
        """The names of the tensors of the state."""
        found: list[str] = []
        for number, block in enumerate(self.blocks):
            assert isinstance(block, ResidualBlock)
            found.extend(f"block{number}_{name}" for name in block.state_names)
        if self.pooling is not None:
            found.extend(["count", *(f"pooled_{kind}" for kind in self.pooling.kinds)])
        return tuple(found)

    def _unpacked(self, state: NetworkState | None) -> list[tuple[Tensor, ...]]:
        """Return the tensors of each block and of the pooling; empty tuples for None."""
        parts: list[tuple[Tensor, ...]] = []
        rest = list(state or ())
        for block in self.blocks:
            assert isinstance(block, ResidualBlock)
            count = len(block.state_names) if state else 0
            parts.append(tuple(rest[:count]))
            rest = rest[count:]
        return [*parts, tuple(rest)]

    def _check(self, input: Tensor, lengths: Tensor | None, state: NetworkState | None) -> None:
        name = type(self).__name__
        if not isinstance(input, Tensor) or input.dim() != 3 or input.size(-1) != self.input_size:
            got = list(input.shape) if isinstance(input, Tensor) else type(input).__name__
            raise ValueError(
                f"{name}: expected input [T, B, {self.input_size}], because input_size={self.input_size}, got {got}."
            )
        if lengths is not None and (not isinstance(lengths, Tensor) or lengths.shape != input.shape[1:2]):
            got = list(lengths.shape) if isinstance(lengths, Tensor) else type(lengths).__name__
            raise ValueError(f"{name}: expected lengths [{input.size(1)}], one for each sequence, got {got}.")
        if state:
            if self.bidirectional:
                raise ValueError(f"{name}: expected no state, because the second direction starts at the end.")
            if len(state) != len(self.state_names):
                raise ValueError(
                    f"{name}: expected a state of {len(self.state_names)} tensors ({', '.join(self.state_names)}), got "
                    f"{len(state)}."
                )
