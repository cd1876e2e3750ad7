"""A fused stream of a whole network: one compiled call per step, the weights laid out once.

B batch, C channels of the input, W width, P = W padded to whole vectors, H units of a layer, K taps, S scores.
"""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn

import torch
from torch import Tensor

from mistrnn.kernels.contract import is_lazy
from mistrnn.kernels.cpu import library
from mistrnn.kernels.cpu.library import Network, NetworkBlock
from mistrnn.kernels.stream import FusedStream

DTYPES = (torch.float32, torch.float64)
"""Of the parameters, and of the rows that a step reads without a conversion."""

POOLINGS = ("last", "mean", "max")
"""In the order of `enum PoolingKind` of kernels/cpu/network_stream.h."""

PADDING = 16  # values: whole vectors of every instruction set and dtype

Pair = tuple[Tensor, Tensor | None]
"""Weight [out, in] and bias [out] of a linear map, taps [K, W] and bias of a convolution, or scale and shift of a norm."""


@dataclass(frozen=True)
class BlockParts:
    """Parameters and state of one block."""

    layer: FusedStream
    layer_norm: Pair
    conv: Pair | None
    history: Tensor | None
    """[K - 1, B, W] the last inputs of the convolution, oldest first."""
    projection: Pair
    unit_norm: Pair
    up: Pair
    down: Pair


@dataclass(frozen=True)
class NetworkParts:
    """Parameters and state of a network."""

    batch_size: int
    mean: Tensor
    deviation: Tensor
    embedding: Pair
    blocks: Sequence[BlockParts]
    norm: Pair
    poolings: Sequence[str]
    """Empty for the scores of each step by itself."""
    count: Tensor | None
    """[B] steps so far."""
    pooled: Sequence[Tensor]
    """[B, W] each."""
    head: Pair


def unavailable(dtype: torch.dtype) -> str | None:
    """Return why the fused step cannot serve, or None if it can."""
    if dtype not in DTYPES:
        return f"it computes in float32 and float64, and the parameters are {str(dtype).removeprefix('torch.')}"
    return library.problem


class FusedNetworkStream:
    """A network that runs step by step: `scores = stream(rows)`, [B, C] to [B, S]."""

    @torch.inference_mode(False)  # a stream outlives the mode in which it was made
    @torch.no_grad()
    def __init__(self, parts: NetworkParts) -> None:
        code = library.loaded
        assert code is not None, library.problem
        weight = parts.embedding[0]
        width, channels = weight.shape
        padded = -(-width // PADDING) * PADDING
        batch, scores = parts.batch_size, parts.head[0].size(0)
        taps = parts.blocks[0].conv[0].size(0) if parts.blocks[0].conv is not None else 1
        self._layout = layout = _Layout(weight, code.panel_bytes() // weight.element_size())
        self._width, self._dtype, self._step = width, weight.dtype, code.network_step
        self._layers = [block.layer for block in parts.blocks]
        self._histories = [layout.history(block.history, padded) for block in parts.blocks]
        described = [
            _block(layout, block, history, padded) for block, history in zip(parts.blocks, self._histories, strict=True)
        ]
        self._blocks = (NetworkBlock * len(described))(*described)
        kinds = (ctypes.c_int64 * len(parts.poolings))(*map(POOLINGS.index, parts.poolings))
        self._kinds = kinds
        self._count = None if parts.count is None else parts.count.clone()
        self._pooled = torch.stack(list(parts.pooled), 1) if parts.pooled else None  # [B, poolings, W]
        units = max(layer._hidden for layer in self._layers)
        network = Network(
            is_double=weight.dtype == torch.float64,
            level=code.level,
            **{"B": batch, "C": channels, "W": width, "P": padded, "K": taps, "S": scores},
            mean=layout.keep(parts.mean.double()),
            deviation=layout.keep(parts.deviation.double()),
            embedding_weight=layout.matrix(parts.embedding[0].t()),
            embedding_bias=layout.row(parts.embedding[1], padded),
            blocks=ctypes.addressof(self._blocks),
            block_count=len(described),
            scale=layout.row(parts.norm[0], padded),
            shift=layout.row(parts.norm[1], padded),
            pooling_count=len(kinds),
            poolings=ctypes.addressof(kinds),
            count=None if self._count is None else self._count.data_ptr(),
            pooled=None if self._pooled is None else self._pooled.data_ptr(),
            head_weight=layout.matrix(parts.head[0].t()),
            head_bias=layout.row(parts.head[1], scores),
            standardised=layout.workspace(batch, channels),
            x=layout.workspace(batch, padded),
            y=layout.workspace(batch, padded),
            layer_input=layout.workspace(batch, width),
            layer_output=layout.workspace(batch, units),
            up=layout.workspace(batch, 2 * padded),
            scores=layout.workspace(batch, -(-scores // PADDING) * PADDING),
        )
        self._network, self._address = network, ctypes.addressof(network)
        self._scores = weight.new_empty(batch, scores)

    def __call__(self, rows: Tensor) -> Tensor:
        """Take one step."""
        if rows.dtype not in DTYPES or is_lazy(rows):
            rows = rows.to(torch.float64, copy=True)
        rows = rows.contiguous()
        scores = torch.empty_like(self._scores)
        self._step(self._address, rows.data_ptr(), rows.dtype == torch.float64, scores.data_ptr())
        return scores

    def reset(self, rows: Tensor) -> None:
        """Let some sequences [B] bool start afresh."""
        for layer in self._layers:
            layer.reset(rows)
        for history in self._histories:
            if history is not None:
                history[:, rows] = 0.0
        if self._count is not None and self._pooled is not None:
            self._count[rows] = 0
            self._pooled[rows] = 0.0

    def block_state(self, number: int) -> tuple[Tensor | None, tuple[Tensor, ...]]:
        """Return the last inputs [K - 1, B, W] of a block's convolution, if it has one, and its layer's state."""
        block, layer, ring = self._blocks[number], self._layers[number], self._histories[number]
        layer._place = block.place  # the compiled step has moved on
        history = None
        if ring is not None:
            place = block.history_place
            history = ring[place : place + ring.size(0) // 2, :, : self._width].clone()
        return history, layer.state()

    def pooled_state(self) -> tuple[Tensor, ...]:
        """Return the number of steps [B] and what is pooled, [B, W] each; nothing without pooling."""
        if self._count is None or self._pooled is None:
            return ()
        return self._count.clone(), *(one.clone() for one in self._pooled.unbind(1))

    def __reduce__(self) -> NoReturn:
        raise TypeError("a running stream cannot be copied or pickled; make another one from its state.")


class _Layout:
    """Copies of the parameters as the compiled step reads them; returns addresses, and keeps the memory alive."""

    def __init__(self, like: Tensor, panel_width: int) -> None:
        self._like, self._panel_width = like, panel_width
        self._alive: list[Tensor] = []

    def keep(self, values: Tensor) -> int:
        """Return the address of a copy."""
        self._alive.append(values.detach().clone(memory_format=torch.contiguous_format))
        return self._alive[-1].data_ptr()

    def workspace(self, *shape: int) -> int:
        return self.keep(self._like.new_zeros(shape))

    def row(self, values: Tensor | None, size: int) -> int:
        """Return the address of a row, or of rows, padded with zeros to this size; zeros for None."""
        found = self._like.new_zeros(*(() if values is None else values.shape[:-1]), size)
        if values is not None:
            found[..., : values.size(-1)] = values
        return self.keep(found)

    def matrix(self, values: Tensor) -> int:
        """Return the address of a matrix [in, out] in panels; see kernels/cpu/product.h."""
        rows, columns = values.shape
        panels = -(-columns // self._panel_width)
        found = self._like.new_zeros(rows, panels * self._panel_width)
        found[:, :columns] = values
        return self.keep(found.view(rows, panels, self._panel_width).transpose(0, 1))

    def history(self, values: Tensor | None, padded: int) -> Tensor | None:
        """Return the ring [2 (K - 1), B, P] of a convolution's last inputs, which holds each of them twice."""
        if values is None:
            return None
        ring = self._like.new_zeros(2 * values.size(0), values.size(1), padded)
        ring[:, :, : values.size(2)] = torch.cat([values, values])
        return ring


def _block(layout: _Layout, parts: BlockParts, history: Tensor | None, padded: int) -> NetworkBlock:
    up, up_bias = parts.up
    width = up.size(1)
    up_columns = up.new_zeros(width, 2, padded)  # [W, 2, P]: the gate's columns, then the value's
    up_columns[:, :, :width] = up.t().reshape(width, 2, width)
    up_bias = up.new_zeros(2 * width) if up_bias is None else up_bias
    return NetworkBlock(
        layer=parts.layer._handle,
        **{"H": parts.layer._hidden, "memory": parts.layer._memory, "place": 0},
        layer_scale=layout.row(parts.layer_norm[0], padded),
        layer_shift=layout.row(parts.layer_norm[1], padded),
        conv_weight=None if parts.conv is None else layout.row(parts.conv[0], padded),
        conv_bias=None if parts.conv is None else layout.row(parts.conv[1], padded),
        history=None if history is None else history.data_ptr(),
        history_place=0,
        projection_weight=layout.matrix(parts.projection[0].t()),
        projection_bias=layout.row(parts.projection[1], padded),
        unit_scale=layout.row(parts.unit_norm[0], padded),
        unit_shift=layout.row(parts.unit_norm[1], padded),
        up_weight=layout.matrix(up_columns.view(width, 2 * padded)),
        up_bias=layout.row(up_bias.reshape(2, width), padded),
        down_weight=layout.matrix(parts.down[0].t()),
        down_bias=layout.row(parts.down[1], padded),
    )
