"""A network that reads one step after another, in constant time and memory.

B batch, C channels of the input, W width, H units of a layer, K scores.
"""

import copy
from collections.abc import Iterator, Sequence
from typing import NoReturn

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import is_parametrized

from mistrnn._torch_compat import forward_hooks, forward_pre_hooks
from mistrnn.kernels.cpu import library
from mistrnn.kernels.cpu.convolutions import FusedConvolutionStream
from mistrnn.kernels.cpu.network_stream import BlockParts, FusedNetworkStream, NetworkParts, unavailable
from mistrnn.layers import RecurrentLayer, checks
from mistrnn.layers.state import state_tensors
from mistrnn.layers.stream import fused_steps
from mistrnn.layers.weight_hooks import recompute_hooked_weights
from mistrnn.models._frames import DepthwiseConv, FrameNorm, GatedUnit
from mistrnn.models._pooling import Pooling
from mistrnn.models.ensemble import Ensemble, Member, combined
from mistrnn.models.network import NetworkState, ResidualBlock, SequenceNetwork
from mistrnn.models.random_convolutions import FARTHEST, LEVELS, RandomConvolutions
from mistrnn.models.standardisation import Arcsinh

_PARTS = (Arcsinh, ResidualBlock, FrameNorm, DepthwiseConv, GatedUnit, Pooling, nn.Linear, nn.ModuleList)
"""The modules that the compiled step knows, apart from the network itself and its layers; no subclasses of them."""


class NetworkStream:
    """A running network: `scores = stream(rows)` for one step after another; made by `network.stream(batch_size)`.

    The scores are those of the sequences if they ended here. A stream runs without gradients on a copy of the weights as
    they were when it was made: on a CPU as one compiled call, elsewhere, and where modules are not mistrnn's own or have
    hooks, by `network(input, state)`.
    """

    def __init__(self, network: Member, batch_size: int, state: NetworkState | None) -> None:
        self._name = type(network).__name__
        if network.bidirectional:
            raise ValueError(
                f"{self._name}: expected bidirectional=False for a stream, because the future has not come yet."
            )
        if any(module.training for module in network.modules()):
            raise ValueError(
                f"{self._name}: expected evaluation mode for a stream, because norms read the whole batch in training and "
                "dropout draws at random; call network.eval() first."
            )
        batch_size = checks.positive_int(self._name, "batch_size", batch_size)
        with torch.inference_mode(False), torch.no_grad():  # a stream outlives the mode in which it was made
            initial = network.initial_state(batch_size)
            state = initial if state is None else self._checked(state, initial, network.state_names)
            self._steps = _steps(network, initial, state, batch_size)
            # The compiled steps standardise, but they do not transform.
            transforms = network.arcsinh is not None and not isinstance(self._steps, _ComposedSteps)
            self._arcsinh = copy.deepcopy(network.arcsinh) if transforms else None
        self._shape = (batch_size, network.input_size)
        self._device, self._like = network.mean.device, network.mean

    def __call__(self, input: Tensor, reset: Tensor | None = None) -> Tensor:
        """Take the rows of one step [B, C] and return the scores [B, K].

        reset [B] bool: the sequences that start afresh at this step.
        """
        if not isinstance(input, Tensor) or input.shape != self._shape:
            got = list(input.shape) if isinstance(input, Tensor) else type(input).__name__
            batch, channels = self._shape
            raise ValueError(
                f"{self._name}.stream: expected input [{batch}, {channels}], one step of {batch} sequences with "
                f"input_size={channels}, got {got}."
            )
        if input.is_complex():
            raise TypeError(f"{self._name}.stream: expected input of real numbers, got {input.dtype}.")
        if input.device != self._device:
            raise ValueError(
                f"{self._name}.stream: expected input on {self._device}, because the parameters are there, got {input.device}."
            )
        if reset is not None:
            checks.check_reset(f"{self._name}.stream", reset, self._shape[:1], "[B]", self._like)
            self._steps.reset(reset)
        if self._arcsinh is None:
            return self._steps(input)
        with torch.no_grad():
            return self._steps(self._arcsinh(input))

    @property
    def state(self) -> NetworkState:
        """The state after the last step, in the form that the network takes and returns."""
        return self._steps.state()

    def __reduce__(self) -> NoReturn:
        raise TypeError("a running stream cannot be copied or pickled; make another one from its state.")

    def _checked(self, state: NetworkState, initial: NetworkState, names: Sequence[str]) -> NetworkState:
        if not isinstance(state, tuple | list) or len(state) != len(names):
            got = f"{len(state)}" if isinstance(state, tuple | list) else type(state).__name__
            raise ValueError(
                f"{self._name}.stream: expected a state of {len(names)} tensors ({', '.join(names)}), got {got}."
            )
        for name, value, like in zip(names, state, initial, strict=True):
            checks.check_state(f"{self._name}.stream", f"state's {name}", value, like.shape, "the network has it", like)
        return tuple(state)


class EnsembleStream:
    """A running ensemble, used as `NetworkStream`; made by `ensemble.stream(batch_size)`."""

    def __init__(self, ensemble: Ensemble, batch_size: int, state: NetworkState | None) -> None:
        self._answer = ensemble.answer
        rest = None if state is None else list(state)
        self._members: list[NetworkStream] = []
        if rest is not None and len(rest) != len(ensemble.state_names):
            raise ValueError(
                f"{type(ensemble).__name__}.stream: expected a state of {len(ensemble.state_names)} tensors, got {len(rest)}."
            )
        self._weights = ensemble.weights
        for member in ensemble.members:
            assert isinstance(member, Member)
            count = len(member.state_names)
            self._members.append(member.stream(batch_size, None if rest is None else tuple(rest[:count])))
            rest = None if rest is None else rest[count:]

    def __call__(self, input: Tensor, reset: Tensor | None = None) -> Tensor:
        """Take the rows of one step [B, C] and return the scores [B, K]; reset as in `NetworkStream`."""
        with torch.no_grad():
            return combined([member(input, reset) for member in self._members], self._answer, self._weights)

    @property
    def state(self) -> NetworkState:
        """The state after the last step, in the form that the ensemble takes and returns."""
        return tuple(tensor for member in self._members for tensor in member.state)

    def __reduce__(self) -> NoReturn:
        raise TypeError("a running stream cannot be copied or pickled; make another one from its state.")


class _FusedSteps:
    """The compiled step of a network of blocks, and its state in the network's form."""

    def __init__(self, network: SequenceNetwork, parts: NetworkParts) -> None:
        self._stream = FusedNetworkStream(parts)
        self.reset = self._stream.reset
        self._layouts = [layer.state_layout(parts.batch_size) for layer in network.recurrent_layers()]

    def __call__(self, input: Tensor) -> Tensor:
        return self._stream(input)

    def state(self) -> NetworkState:
        found: list[Tensor] = []
        for number, layout in enumerate(self._layouts):
            history, layer_state = self._stream.block_state(number)
            found.extend(() if history is None else (history,))
            found.extend(state_tensors(layout.pack([layer_state])))
        return *found, *self._stream.pooled_state()


class _ComposedSteps:
    """One step after another through a copy of the network itself."""

    def __init__(self, network: Member, initial: NetworkState, state: NetworkState, batch: int) -> None:
        for module in network.modules():
            recompute_hooked_weights(module)  # without a graph, which could not be copied
        self._network = copy.deepcopy(network)
        self._initial = initial
        self._state = tuple(tensor.clone() for tensor in state)
        # Where two batch sizes differ is the axis of the sequences.
        others = network.initial_state(batch + 1)
        self._axes = [
            next(axis for axis, pair in enumerate(zip(one.shape, other.shape, strict=True)) if pair[0] != pair[1])
            for one, other in zip(initial, others, strict=True)
        ]

    @torch.no_grad()
    def __call__(self, input: Tensor) -> Tensor:
        scores: Tensor
        scores, self._state = self._network(input.unsqueeze(0), self._state)
        return scores[0] if self._network.every_step else scores

    @torch.no_grad()
    def reset(self, rows: Tensor) -> None:
        self._state = tuple(
            torch.where(rows.view(-1, *[1] * (tensor.dim() - axis - 1)), first, tensor)
            for tensor, first, axis in zip(self._state, self._initial, self._axes, strict=True)
        )

    def state(self) -> NetworkState:
        return tuple(tensor.clone() for tensor in self._state)


def _steps(
    network: Member, initial: NetworkState, state: NetworkState, batch_size: int
) -> _FusedSteps | FusedConvolutionStream | _ComposedSteps:
    """Return the fastest way to run a network step by step."""
    if isinstance(network, RandomConvolutions):
        own = all(map(_is_known, network.modules())) and type(network).forward is RandomConvolutions.forward
        if own and library.loaded is not None and network.mean.device.type == "cpu":
            head = network.head.weight, network.head.bias
            return FusedConvolutionStream(
                network.convolutions,
                network.mean,
                network.scale,
                LEVELS,
                FARTHEST,
                head,
                state,  # type: ignore[arg-type]
            )
    elif (parts := _fused_parts(network, state, batch_size)) is not None:
        return _FusedSteps(network, parts)
    return _ComposedSteps(network, initial, state, batch_size)


def _fused_parts(network: SequenceNetwork, state: NetworkState, batch_size: int) -> NetworkParts | None:
    """Return what the compiled step is made from; None where it would not compute the same as the network."""
    if not _is_fusable(network):
        return None
    *states, pooled = network._unpacked(state)
    return NetworkParts(
        batch_size=batch_size,
        mean=network.mean,
        deviation=network.scale,
        embedding=_linear(network.embedding),
        blocks=[_block(block, own, batch_size) for block, own in zip(_blocks(network), states, strict=True)],
        norm=network.norm.affine(),
        poolings=() if network.pooling is None else network.pooling.kinds,
        count=pooled[0] if pooled else None,
        pooled=pooled[1:],
        head=_linear(network.head),
    )


def _block(block: ResidualBlock, state: tuple[Tensor, ...], batch_size: int) -> BlockParts:
    layer, conv = block.layer, block.conv
    history, rest = (None, state) if conv is None else (state[0], state[1:])
    weights = layer.all_cell_weights(recompute=True)[0]
    layer_state = layer.state_layout(batch_size).unpack_tensors(rest, weights["weight_hh"])
    return BlockParts(
        layer=fused_steps(layer, weights, layer_state[0]),
        layer_norm=block.layer_norm.affine(),
        conv=None if conv is None else (conv.weight, conv.bias),
        history=history,
        projection=_linear(block.projection),
        unit_norm=block.unit_norm.affine(),
        up=_linear(block.unit.up),
        down=_linear(block.unit.down),
    )


def _is_fusable(network: SequenceNetwork) -> bool:
    """Whether the compiled step computes what the network computes."""
    if type(network).forward is not SequenceNetwork.forward or not all(map(_is_known, network.modules())):
        return False
    like = network.embedding.weight
    if not all(layer.takes_fused(like) for layer in network.recurrent_layers()):  # an error if that is wanted
        return False
    if like.device.type != "cpu" or unavailable(like.dtype) is not None:
        return False
    own = [*network.parameters(), *(buffer for norm in network.norms() for buffer in norm.buffers())]
    if any(tensor.dtype != like.dtype or tensor.device != like.device for tensor in own):
        return False
    # Standardisation is compiled for statistics in float64, which `network.float()` shortens.
    if any(tensor.dtype != torch.float64 or tensor.device != like.device for tensor in (network.mean, network.scale)):
        return False
    return all(list(tensor.shape) == shape for tensor, shape in _shapes(network))


def _is_known(module: nn.Module) -> bool:
    """Whether a module computes what its class says."""
    if forward_hooks(module) or forward_pre_hooks(module) or "forward" in vars(module):
        return False
    if isinstance(module, RecurrentLayer):
        alone = module.num_layers == 1 and not module.batch_first and not is_parametrized(module)
        return alone and type(module).forward is RecurrentLayer.forward
    return isinstance(module, Member) or type(module) in _PARTS


def _shapes(network: SequenceNetwork) -> Iterator[tuple[Tensor, list[int]]]:
    """Return all tensors with the shapes that they were made with; compiled code would read beyond others."""
    width, inputs, scores = network.hidden_size, network.input_size, network.output_size
    pooled = width * (1 if network.pooling is None else len(network.pooling.kinds))
    linear = [(network.embedding, width, inputs), (network.head, scores, pooled)]
    yield from ((network.mean, [inputs]), (network.scale, [inputs]))
    for block in _blocks(network):
        linear += [(block.projection, width, width), (block.unit.up, 2 * width, width), (block.unit.down, width, width)]
        yield block.layer.cell_weights(0, 0)["weight_ih"], [sum(block.layer.norm_blocks()), width]
        if block.conv is not None:
            yield from ((block.conv.weight, [network.kernel_size, width]), (block.conv.bias, [width]))
    for module, rows, columns in linear:
        yield module.weight, [rows, columns]
        if module.bias is not None:
            yield module.bias, [rows]
    for norm in network.norms():
        yield from ((tensor, [width]) for tensor in (*norm.parameters(), *norm.buffers()))


def _blocks(network: SequenceNetwork) -> list[ResidualBlock]:
    return list(network.blocks)  # type: ignore[arg-type]


def _linear(module: nn.Linear) -> tuple[Tensor, Tensor | None]:
    return module.weight, module.bias
