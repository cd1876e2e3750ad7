"""The problem that a GPU kernel solves: everything that is known at compile time, apart from the launch configuration.

H hidden units, D lags (delays or periods), G parameter rows.
"""

from dataclasses import dataclass
from math import ceil

from mistrnn.kernels.cell import Cell, CudaKernels

MAX_HIDDEN, MAX_DELAYS, MAX_DELAY = 1024, 16, 4096
"""The largest layer that the kernels are written and tested for."""


@dataclass(frozen=True)
class Problem:
    """The cell, the sizes and the options of a run in one direction."""

    cell: Cell
    backward: bool
    hidden: int
    fused_input: bool
    """Whether the kernel multiplies the input itself, a single number per step, or reads its projection."""
    delays: tuple[int, ...]
    memory: int
    splits: int
    """bfloat16 terms into which a float32 operand is split; 0 for plain arithmetic without tensor cores."""
    double: bool = False
    bias: bool = True
    bias_hn: bool = False
    norm: bool = False
    reset: bool = False
    lengths: bool = False
    reverse: bool = False
    zoneout: int = 0
    """1 by masks, 2 by its probability."""
    dropout: bool = False
    save: bool = True
    probe: bool = False
    """Whether the kernel writes the full derivative with respect to every state."""

    @property
    def kernels(self) -> CudaKernels:
        """The shape of the cell's kernels."""
        assert self.cell.cuda is not None, self.cell.name
        return self.cell.cuda

    @property
    def phases(self) -> int:
        """Matrix products of a step."""
        return 2 if self.kernels.has_mixed_history else 1

    @property
    def gates(self) -> int:
        """Gates with one row per unit."""
        return self.cell.gates

    @property
    def extra_rows(self) -> int:
        """Parameter rows beyond the gates': one per lag."""
        return self.cell.rows_extent.lags * len(self.delays)

    @property
    def gradient_columns(self) -> int:
        """Gradients of pre-activations that a backward step writes."""
        extent = self.cell.rows_extent + self.cell.extra_gradient_rows
        return extent(self.hidden, len(self.delays))

    @property
    def gradient_stride(self) -> int:
        """Stride between sequences of these gradients: a multiple of 16 bytes, which torch's GEMM prefers."""
        return ceil(self.gradient_columns / 4) * 4

    @property
    def mixed_stride(self) -> int:
        """Stride between sequences of the mixed history."""
        return ceil(self.hidden / 4) * 4

    @property
    def saved_vectors(self) -> int:
        """Vectors [H] that a step saves; each cell's `cuda.cuh` lists them."""
        kernels = self.kernels
        if not self.save:
            return kernels.saved_vectors_for_inference
        fresh = kernels.saves_fresh_state and self.zoneout == 2
        return kernels.saved_vectors + fresh + (2 * self.gates if self.norm else 0)

    @property
    def saved_lag_vectors(self) -> int:
        """Vectors [D] that a step saves."""
        own = self.kernels.saved_lag_vectors
        return (own + 2 if self.norm else own) if own and self.save else 0

    @property
    def initial_states(self) -> int:
        """Initial states that precede the saved vectors of the first step."""
        return self.memory if self.kernels.has_mixed_history else 0

    @property
    def reduces_input(self) -> bool:
        """Whether the kernel itself accumulates the gradient of weight_ih."""
        return self.backward and self.fused_input

    @property
    def reductions(self) -> int:
        """Sums over time per gradient column: of dz (bias), dz x (weight_ih), dz c (weight_ch), the gradient of the gain."""
        return 1 + self.reduces_input + self.has_diagonal + self.norm

    @property
    def has_diagonal(self) -> bool:
        """Whether some gates read the second state component through weight_ch."""
        return bool(self.cell.diagonal_weights)

    @property
    def diagonal_gates(self) -> list[int]:
        """The gate of each row of weight_ch."""
        names = [block.name for block in self.cell.row_blocks]
        return [names.index(name) for name in self.cell.diagonal_weights]

    @property
    def _diagonal_rows(self) -> list[int]:
        """The row of weight_ch of each gate, or -1."""
        gates = self.diagonal_gates
        return [gates.index(gate) if gate in gates else -1 for gate in range(len(self.cell.row_blocks))]

    @property
    def constants(self) -> dict[str, object]:
        """The preprocessor constants of the problem."""
        return {
            "REAL": "double" if self.double else "float",
            "HIDDEN": self.hidden,
            "DELAY_COUNT": len(self.delays),
            "DELAYS": ", ".join(map(str, self.delays or (0,))),
            "MEMORY": self.memory,
            "SPLITS": self.splits,
            "PHASES": self.phases,
            "BACKWARD": self.backward,
            "FUSED_INPUT": self.fused_input,
            "HAS_LENGTHS": self.lengths,
            "HAS_RESET": self.reset,
            "HAS_NORM": self.norm,
            "HAS_DROPOUT": self.dropout,
            "HAS_BIAS": self.bias,
            "HAS_BIAS_HN": self.bias_hn,
            "HAS_DIAGONAL": self.has_diagonal,
            "DIAGONAL_ROWS": ", ".join(map(str, self._diagonal_rows)),
            "SAVE": self.save,
            "REVERSE": self.reverse,
            "PROBE": self.probe,
            "ZONEOUT": self.zoneout,
            "PARAMETER_ROWS": self.gates * self.hidden + self.extra_rows,
            "SAVED_VECTORS": self.saved_vectors,
            "SAVED_LAG_VECTORS": self.saved_lag_vectors,
            "INITIAL_STATES": self.initial_states,
            "GRADIENT_COLUMNS": self.gradient_columns,
            "GRADIENT_STRIDE": self.gradient_stride,
            "MIXED_STRIDE": self.mixed_stride,
        }
