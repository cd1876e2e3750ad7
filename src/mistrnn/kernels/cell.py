"""The declaration of a recurrent cell, from which everything else follows.

Parameter shapes, input checks, memory estimates, C structs, kernel dispatch, export and analysis read a `Cell`; nothing in
this package knows a cell by name. A layer's folder declares its cell in `cell.py` and registers it.

G parameter rows, H hidden units, D lags (delays or periods), M memory (the longest delay).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor


class Extent(NamedTuple):
    """A size that is linear in H and D.

    >>> Extent(hidden=2, lags=1)(hidden=100, lags=8)
    208
    """

    hidden: int = 0
    lags: int = 0

    def __call__(self, hidden: int, lags: int) -> int:
        """Return the size for H hidden units and D lags."""
        return self.hidden * hidden + self.lags * lags

    def __add__(self, other: object) -> "Extent":
        """Add two sizes."""
        if not isinstance(other, Extent):
            return NotImplemented
        return Extent(self.hidden + other.hidden, self.lags + other.lags)


NO_ROWS, ONE_PER_UNIT, ONE_PER_LAG = Extent(), Extent(hidden=1), Extent(lags=1)


class Lags(Enum):
    """The meaning of a cell's list of D positive integers."""

    NONE = "none"
    """The cell has no such list and reads h_{t-1} alone."""
    DELAYS = "delays"
    """The cell reads h_{t-d} for each delay d; its memory is the longest."""
    PERIODS = "periods"
    """The units fall into D equal groups, each with a period of its own; the cell needs a clock."""


class RowBlock(NamedTuple):
    """The parameter rows of one gate: one pre-activation per row."""

    name: str
    rows: Extent = ONE_PER_UNIT


class Operand(Enum):
    """The right-hand factor of a recurrent weight gradient."""

    PREVIOUS_STATE = "h_{t-1}"
    DELAYED_STATES = "h_{t-d} for each delay, side by side"
    MIXED_HISTORY = "a vector [H] that the backward kernel writes at each step"


class WeightGrad(NamedTuple):
    """A block of rows of the gradient of weight_hh: dz[start:stop] times an operand, summed over steps and sequences."""

    start: Extent
    stop: Extent
    operand: Operand = Operand.PREVIOUS_STATE


class Registers(NamedTuple):
    """Registers of a CUDA thread beyond those that hold weights, found by compiling; see tests/kernels."""

    forward: int
    backward: int
    single_sequence: int
    """Forward, where a thread block has one sequence and a thread one unit."""
    per_value: int
    """For each value of a thread above four, forward."""
    per_value_backward: int
    forward_per_lag: int = 0
    """For each lag and value, forward (history that is prefetched)."""
    backward_per_lag: int = 0


@dataclass(frozen=True, eq=False)
class CudaKernels:
    """The shape of a cell's persistent CUDA kernels (`cuda.cuh`) and their budgets."""

    registers: Registers
    saved_vectors: int = 1
    """Vectors [H] that a forward step saves for the backward pass, without those of layer norm."""
    saved_vectors_for_inference: int = 0
    """... that it writes even if no backward pass follows, because later steps read them."""
    saves_fresh_state: bool = False
    """Whether zoneout in evaluation saves one vector [H] more: the new state before it is mixed with the old one."""
    saved_lag_vectors: int = 0
    """Vectors [D] that a forward step saves; two more with layer norm."""
    has_mixed_history: bool = False
    """Whether the cell mixes its delayed states: two matrix products per step, a softmax over D, initial states saved."""
    product_per_lag: bool = False
    """Whether the recurrent product has one matrix [H, H] per lag."""
    partial_sums_per_delay: bool = False
    """Whether the kernels keep M partial sums [H] per sequence in their ring buffer."""
    max_hidden_without_clusters: int = 256
    """The largest layer on GPUs without thread block clusters."""
    max_single_sequence_blocks: Mapping[int, int] = field(default_factory=lambda: {2: 1, 3: 3})
    """Single-sequence thread blocks per multiprocessor that are faster than blocks of eight, by bf16 splits."""
    min_cluster: Mapping[int, int] = field(default_factory=dict)
    """The least cluster size for some hidden sizes, measured."""


class StepwiseKernels(NamedTuple):
    """The thresholds from which on all trials advance together, one launch per step (`stepwise.cuh`)."""

    min_hidden: int
    min_macs: int
    """Multiply-adds of one [H, H] matrix in a step of all trials."""


Step = Callable[[Mapping[str, Tensor], Tensor | None, Sequence[int]], Any]
"""(parameters by short name, recurrent dropout mask, delays or periods) -> the step of `reference.py`."""


@dataclass(frozen=True, eq=False)
class Cell:
    """One recurrent cell.

    Args:
        name: the folder of the layer, the registered operator and the word on the command line.
        step: makes the reference step from parameters, dropout mask, and delays or periods.
        folder: the folder of `cpu.h`, `cuda.cuh` and `stepwise.cuh`; None without fused kernels.
        row_blocks: the parameter rows, gate after gate.
        state: the components of the state; the first is the output.
        lags: the meaning of the cell's list of integers.
        recurrent_columns_per_lag: whether weight_hh has one matrix [H, H] per lag, side by side, or one in all.
        hidden_bias: whether there is a second bias `bias_hn` [H], added to the last gate's recurrent product.
        diagonal_weights: the gates that read the second state component unit by unit; each has a row of `weight_ch` [P, H].
        saved: values that a CPU forward step saves for the backward pass, without those of layer norm.
        saves_fresh_state: whether zoneout in evaluation saves the new state, too.
        extra_gradient_rows: gradients of pre-activations that a backward step writes beyond the G parameter rows.
        weight_grads: how the gradient of weight_hh follows from them.
        weight_mask: (periods, H, device) -> the entries of weight_hh [H, H] that do not exist, or None.
        cuda: the persistent CUDA kernels, or None.
        stepwise: the step-wise CUDA kernels, or None.
    """

    name: str
    step: Step
    folder: Path | None = None
    row_blocks: tuple[RowBlock, ...] = (RowBlock("h"),)
    state: tuple[str, ...] = ("h",)
    lags: Lags = Lags.NONE
    recurrent_columns_per_lag: bool = False
    hidden_bias: bool = False
    diagonal_weights: tuple[str, ...] = ()
    saved: Extent = NO_ROWS
    saves_fresh_state: bool = True
    extra_gradient_rows: Extent = NO_ROWS
    weight_grads: tuple[WeightGrad, ...] = ()
    weight_mask: Callable[[Sequence[int], int, Any], Tensor] | None = None
    cuda: CudaKernels | None = None
    stepwise: StepwiseKernels | None = None

    def __post_init__(self) -> None:
        """Complete the recipe of the weight gradient: all rows times the previous state."""
        if not self.weight_grads:
            object.__setattr__(self, "weight_grads", (WeightGrad(Extent(), self.rows_extent),))

    @property
    def class_name(self) -> str:
        """The cell's class in C++ and CUDA: `peephole_lstm` is `PeepholeLstm`."""
        return "".join(word.title() for word in self.name.split("_"))

    @property
    def rows_extent(self) -> Extent:
        """G as a size."""
        total = Extent()
        for block in self.row_blocks:
            total += block.rows
        return total

    @property
    def gates(self) -> int:
        """The gates with one row per unit."""
        return self.rows_extent.hidden

    def rows(self, hidden: int, lags: int) -> int:
        """Return G."""
        return self.rows_extent(hidden, lags)

    def recurrent_columns(self, hidden: int, lags: int) -> int:
        """Return the columns of weight_hh."""
        return hidden * lags if self.recurrent_columns_per_lag else hidden

    def norm_blocks(self, hidden: int, lags: int) -> list[int]:
        """Return the rows that layer norm normalises together, block after block."""
        if self.lags is Lags.PERIODS:
            return [hidden // lags] * lags
        return [block.rows(hidden, lags) for block in self.row_blocks]

    def norm_block_count(self, lags: int) -> int:
        """Return the number of those blocks."""
        return lags if self.lags is Lags.PERIODS else len(self.row_blocks)

    def saved_size(self, hidden: int, lags: int, *, zoneout: bool, layer_norm: bool) -> int:
        """Return S, the values that a CPU forward step saves for the backward pass; zoneout: by its probability."""
        size = self.saved(hidden, lags)
        if zoneout and self.saves_fresh_state:
            size += hidden
        if layer_norm:  # normalised pre-activations and the scale of each block
            size += self.rows(hidden, lags) + self.norm_block_count(lags)
        return size

    def parameter_shapes(
        self, inputs: int, hidden: int, lags: int, *, bias: bool, layer_norm: bool
    ) -> dict[str, tuple[int, ...]]:
        """Return the shapes of the parameters by short name, in their order."""
        rows = self.rows(hidden, lags)
        shapes: dict[str, tuple[int, ...]] = {
            "weight_ih": (rows, inputs),
            "weight_hh": (rows, self.recurrent_columns(hidden, lags)),
        }
        if bias:
            shapes["bias"] = (rows,)
        if layer_norm:
            shapes["gain"] = (rows,)
        if bias and self.hidden_bias:
            shapes["bias_hn"] = (hidden,)
        if self.diagonal_weights:
            shapes["weight_ch"] = (len(self.diagonal_weights), hidden)
        return shapes

    def memory(self, lags: Sequence[int]) -> int:
        """Return M, the number of past states that a step reads."""
        return max(lags) if self.lags is Lags.DELAYS else 1

    @property
    def keeps_history(self) -> bool:
        """Whether a step reads states from before the last one."""
        return self.lags is Lags.DELAYS

    @property
    def has_clock(self) -> bool:
        """Whether a step needs to know how long ago its sequence began."""
        return self.lags is Lags.PERIODS

    @property
    def required_inputs(self) -> tuple[str, ...]:
        """The tensors that this cell needs and others do not."""
        needs = {"initial_c": len(self.state) > 1, "clock": self.has_clock, "weight_ch": bool(self.diagonal_weights)}
        return tuple(name for name, needed in needs.items() if needed)


_cells: dict[str, Cell] = {}
_actions: list[Callable[[Cell], None]] = []


def register_cell(cell: Cell) -> None:
    """Make a cell known by its name, and register its operators."""
    known = _cells.get(cell.name)
    if known is not None and known.folder != cell.folder:
        raise ValueError(f"register_cell: expected a new name, got {cell.name!r}, which {known.folder} has declared.")
    _cells[cell.name] = cell
    for action in _actions:
        action(cell)


def is_registered(cell: Cell) -> bool:
    """Return whether a cell has been registered, so that fused kernels may compute it.

    >>> from dataclasses import replace
    >>> from mistrnn.layers.rnn import CELL
    >>> is_registered(CELL), is_registered(replace(CELL, step=lambda *_: None))
    (True, False)
    """
    return _cells.get(cell.name) is cell


def for_each_cell(action: Callable[[Cell], None]) -> None:
    """Call `action` with every cell that is registered now or later."""
    _actions.append(action)
    for cell in _cells.values():
        action(cell)


def cell(name: str) -> Cell:
    """Return the cell of that name."""
    if name not in _cells:
        raise ValueError(f"expected a registered cell among {', '.join(_cells)}, got {name!r}.")
    return _cells[name]


def cells() -> Iterator[Cell]:
    """Iterate over all registered cells."""
    yield from _cells.values()
