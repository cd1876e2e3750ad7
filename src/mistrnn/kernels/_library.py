"""The compiled library of the fused CPU forms: where it lies, what it takes, how it is loaded."""

import ctypes
import sys
from pathlib import Path
from typing import Any

import torch

PATH = Path(__file__).parent / "cpp" / ("libmistrnn.dylib" if sys.platform == "darwin" else "libmistrnn.so")

INSTRUCTION_SETS = ("base", "avx2", "avx512")
"""What the library is compiled for on x86, slowest first; the best that the machine has is used."""

_INT, _POINTER, _DOUBLE = ctypes.c_int64, ctypes.c_void_p, ctypes.c_double


def _named(kind: type, *names: str) -> list[tuple[str, type]]:
    return [(name, kind) for name in names]


class Call(ctypes.Structure):
    """`struct Call` of kernels/cpp/call.h, field by field; see there for the meanings."""

    _fields_ = (
        *_named(_INT, "cell", "is_double", "threads", "together"),
        *_named(_POINTER, "team", "team_size"),
        *_named(_INT, "E", "T", "B", "I", "H", "M", "D", "S"),
        *_named(_POINTER, "delays"),
        *_named(_INT, "layer_norm", "reverse", "save"),
        *_named(_DOUBLE, "zoneout"),
        *_named(_POINTER, "x", "weight_ih", "weight_hh", "bias", "bias_hn", "gain"),
        *_named(_INT, "x_trial", "x_time", "x_sequence"),
        *_named(_INT, "weight_ih_trial", "weight_hh_trial", "bias_trial", "bias_hn_trial", "gain_trial"),
        *_named(_POINTER, "initial_h", "initial_c"),
        *_named(_INT, "initial_h_trial", "initial_c_trial"),
        *_named(_POINTER, "clock", "lengths"),
        *_named(_INT, "clock_trial", "lengths_trial"),
        *_named(_POINTER, "reset", "keep_h", "keep_c"),
        *_named(_INT, "reset_trial", "keep_h_trial", "keep_c_trial"),
        *_named(_POINTER, "dropout"),
        *_named(_INT, "dropout_trial"),
        *_named(_POINTER, "output", "final_h", "final_c", "saved"),
        *_named(_POINTER, "d_output", "d_final_h", "d_final_c"),
        *_named(_INT, "d_output_trial", "d_output_time", "d_output_sequence", "d_output_unit"),
        *_named(_INT, "d_final_h_trial", "d_final_c_trial"),
        *_named(_POINTER, "d_x", "d_weight_ih", "d_weight_hh", "d_bias", "d_bias_hn", "d_gain"),
        *_named(_POINTER, "d_initial_h", "d_initial_c", "d_probe_h", "d_probe_c"),
    )


_SIZES = (
    *_named(_INT, "is_double", "threads"),
    *_named(_POINTER, "team", "team_size"),
    *_named(_INT, "E", "T", "B", "C"),
)
"""`struct BlockSizes` of kernels/cpp/blocks.h."""


class DepthwiseConv(ctypes.Structure):
    """`struct DepthwiseConv` of kernels/cpp/blocks.h."""

    _fields_ = (
        *_SIZES,
        *_named(_INT, "K", "ahead"),
        *_named(_POINTER, "x", "weight", "bias", "y", "d_y", "d_x", "d_weight", "d_bias", "workspace"),
    )


class BatchNorm(ctypes.Structure):
    """`struct BatchNorm` of kernels/cpp/blocks.h."""

    _fields_ = (
        *_SIZES,
        *_named(_DOUBLE, "epsilon"),
        *_named(_POINTER, "lengths", "x", "weight", "bias", "y", "mean", "rstd", "variance"),
        *_named(_POINTER, "d_y", "d_x", "d_weight", "d_bias"),
    )


class GatedUnit(ctypes.Structure):
    """`struct GatedUnit` of kernels/cpp/blocks.h."""

    _fields_ = (*_SIZES, *_named(_POINTER, "x", "d_y", "y", "d_x"))


class NetworkBlock(ctypes.Structure):
    """`struct NetworkBlock` of kernels/cpp/network_stream.h."""

    _fields_ = (
        *_named(_POINTER, "layer"),
        *_named(_INT, "H", "memory", "place"),
        *_named(_POINTER, "layer_scale", "layer_shift", "conv_weight", "conv_bias", "history"),
        *_named(_INT, "history_place"),
        *_named(_POINTER, "projection_weight", "projection_bias", "unit_scale", "unit_shift"),
        *_named(_POINTER, "up_weight", "up_bias", "down_weight", "down_bias"),
    )


class Network(ctypes.Structure):
    """`struct Network` of kernels/cpp/network_stream.h."""

    _fields_ = (
        *_named(_INT, "is_double", "level", "B", "C", "W", "P", "K", "S"),
        *_named(_POINTER, "mean", "deviation", "embedding_weight", "embedding_bias", "blocks"),
        *_named(_INT, "block_count"),
        *_named(_POINTER, "scale", "shift"),
        *_named(_INT, "pooling_count"),
        *_named(_POINTER, "poolings", "count", "pooled", "head_weight", "head_bias"),
        *_named(_POINTER, "standardised", "x", "y", "layer_input", "layer_output", "up", "scores"),
    )


class Library:
    """The loaded library."""

    def __init__(self, path: Path) -> None:
        code = ctypes.CDLL(str(path))
        signatures: list[tuple[Any, Any, list[Any]]] = [
            (code.mistrnn_best_level, _INT, []),
            (code.mistrnn_run, _INT, [_POINTER, _INT, _INT]),
            (code.mistrnn_stream_new, _POINTER, [_POINTER, _INT]),
            (code.mistrnn_stream_step, None, [_POINTER, _POINTER, _POINTER, _INT]),
            (code.mistrnn_stream_free, None, [_POINTER]),
            (code.mistrnn_panel_bytes, _INT, [_INT]),
            (code.mistrnn_network_step, None, [_POINTER, _POINTER, _INT, _POINTER]),
        ]
        self._blocks: dict[type[ctypes.Structure], Any] = {
            DepthwiseConv: code.mistrnn_depthwise_conv,
            BatchNorm: code.mistrnn_batch_norm,
            GatedUnit: code.mistrnn_glu,
        }
        signatures += [(function, _INT, [_POINTER, _INT]) for function in self._blocks.values()]
        sizes = {
            Call: code.mistrnn_call_size,
            DepthwiseConv: code.mistrnn_depthwise_conv_size,
            BatchNorm: code.mistrnn_batch_norm_size,
            GatedUnit: code.mistrnn_glu_size,
            NetworkBlock: code.mistrnn_network_block_size,
            Network: code.mistrnn_network_size,
        }
        signatures += [(function, _INT, []) for function in sizes.values()]
        for function, result, arguments in signatures:
            function.restype, function.argtypes = result, arguments
        if any(size() != ctypes.sizeof(struct) for struct, size in sizes.items()):
            raise OSError(f"{path} is of another version of mistrnn; install mistrnn again")
        self._code = code
        self._team, self._team_size = _team()
        self.together = -1
        """Whether threads share one trial's weights: 1 yes, 0 no, -1 where it is faster."""
        self.stream_step = code.mistrnn_stream_step
        self.stream_free = code.mistrnn_stream_free
        self.network_step = code.mistrnn_network_step
        self.level: int = code.mistrnn_best_level()
        """Which of INSTRUCTION_SETS is used."""

    def run(self, call: Call, *, backward: bool) -> None:
        """Run forwards or backwards."""
        call.team, call.team_size, call.together = self._team, self._team_size, self.together
        status = self._code.mistrnn_run(ctypes.byref(call), backward, self.level)
        if status == 1:
            raise MemoryError(f"not enough memory for {call.E} x {call.B} sequences of {call.T} steps")
        assert status == 0, "a cell that the library does not know"

    def run_block(self, call: DepthwiseConv | BatchNorm | GatedUnit) -> None:
        """Run a kernel of the network blocks."""
        call.team, call.team_size = self._team, self._team_size
        if self._blocks[type(call)](ctypes.byref(call), self.level):
            raise MemoryError(f"not enough memory for {call.E} x {call.B} sequences of {call.T} steps")

    def new_stream(self, call: Call) -> int:
        """Return a stream; `stream_step` takes it on, `stream_free` ends it."""
        stream = self._code.mistrnn_stream_new(ctypes.byref(call), self.level)
        if not stream:
            raise MemoryError(f"not enough memory for a stream of {call.B} sequences")
        return int(stream)

    def panel_bytes(self) -> int:
        """Return the width of a panel of a matrix, as `network_step` reads it."""
        return int(self._code.mistrnn_panel_bytes(self.level))


def _team() -> tuple[int | None, int | None]:
    """Return the addresses of GOMP_parallel and omp_get_num_threads in the OpenMP that torch has loaded, if there is one.

    Torch's threads keep a core busy for some milliseconds after each of its operations: better to work with them than to
    compete with them.
    """
    try:
        torch_code = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))
        functions = torch_code.GOMP_parallel, torch_code.omp_get_num_threads
        parallel, size = (ctypes.cast(function, _POINTER).value for function in functions)
        return parallel, size
    except (OSError, AttributeError):
        return None, None  # threads of our own serve


def _load() -> Library | str:
    if sys.platform not in ("linux", "darwin"):
        return f"there is no compiled code for {sys.platform}"
    if not PATH.exists():
        return f"mistrnn was installed without its compiled code ({PATH.name}); pip compiles it: `pip install .` in a checkout"
    try:
        return Library(PATH)
    except OSError as error:
        return f"its compiled code cannot be loaded: {error}"


_found = _load()
library: Library | None = None if isinstance(_found, str) else _found
problem: str | None = _found if isinstance(_found, str) else None
"""Why there is no library. Found out when mistrnn is imported, so that torch.compile sees a constant."""
