"""The compiled library of the CPU kernels: its structs, its functions, and how it is loaded."""

import ctypes
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

PATH = Path(__file__).parent / ("libmistrnn.dylib" if sys.platform == "darwin" else "libmistrnn.so")

INSTRUCTION_SETS = ("base", "avx2", "avx512")
"""Instruction sets of x86 for which the library is compiled, slowest first; it uses the best that the machine has."""

_INT, _POINTER, _DOUBLE = ctypes.c_int64, ctypes.c_void_p, ctypes.c_double


def _named(kind: type, *names: str) -> list[tuple[str, type]]:
    return [(name, kind) for name in names]


class Call(ctypes.Structure):
    """`struct Call` of kernels/cpu/call.h, field by field; see there for the meanings."""

    _fields_ = (
        *_named(_INT, "cell", "is_double", "threads", "together"),
        *_named(_POINTER, "team", "team_size"),
        *_named(_INT, "E", "T", "B", "I", "H", "M", "D", "S"),
        *_named(_POINTER, "delays"),
        *_named(_INT, "layer_norm", "reverse", "save"),
        *_named(_DOUBLE, "zoneout"),
        *_named(_POINTER, "x", "weight_ih", "weight_hh", "weight_ch", "bias", "bias_hn", "gain"),
        *_named(_INT, "x_trial", "x_time", "x_sequence"),
        *_named(
            _INT, "weight_ih_trial", "weight_hh_trial", "weight_ch_trial", "bias_trial", "bias_hn_trial", "gain_trial"
        ),
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
        *_named(_POINTER, "d_x", "d_weight_ih", "d_weight_hh", "d_weight_ch", "d_bias", "d_bias_hn", "d_gain"),
        *_named(_POINTER, "d_initial_h", "d_initial_c", "d_probe_h", "d_probe_c"),
    )


_SIZES = (
    *_named(_INT, "is_double", "threads"),
    *_named(_POINTER, "team", "team_size"),
    *_named(_INT, "E", "T", "B", "C"),
)
"""`struct BlockSizes` of kernels/cpu/blocks.h."""


class DepthwiseConv(ctypes.Structure):
    """`struct DepthwiseConv` of kernels/cpu/blocks.h."""

    _fields_ = (
        *_SIZES,
        *_named(_INT, "K", "ahead"),
        *_named(_POINTER, "x", "weight", "bias", "y", "d_y", "d_x", "d_weight", "d_bias", "workspace"),
    )


class BatchNorm(ctypes.Structure):
    """`struct BatchNorm` of kernels/cpu/blocks.h."""

    _fields_ = (
        *_SIZES,
        *_named(_DOUBLE, "epsilon"),
        *_named(_POINTER, "lengths", "x", "weight", "bias", "y", "mean", "rstd", "variance"),
        *_named(_POINTER, "d_y", "d_x", "d_weight", "d_bias"),
    )


class GatedUnit(ctypes.Structure):
    """`struct GatedUnit` of kernels/cpu/blocks.h."""

    _fields_ = (*_SIZES, *_named(_POINTER, "x", "d_y", "y", "d_x"))


class PositiveCounts(ctypes.Structure):
    """`struct PositiveCounts` of kernels/cpu/blocks.h."""

    _fields_ = (
        *_SIZES,
        *_named(_INT, "x_sequence", "x_channel", "memory", "dilation_count"),
        *_named(_POINTER, "dilations", "thresholds_each", "channels", "lengths", "x", "thresholds", "hits"),
        *_named(_INT, "F"),
    )


class ConvolutionStep(ctypes.Structure):
    """`struct ConvolutionStep` of kernels/cpu/blocks.h."""

    _fields_ = (
        *_named(_INT, "B", "C", "F", "K", "memory", "place", "dilation_count"),
        *_named(_POINTER, "dilations", "thresholds_each", "channels", "thresholds", "mean", "deviation"),
        *_named(_DOUBLE, "levels", "farthest"),
        *_named(_POINTER, "ring", "count", "hits", "head_weight", "head_bias", "taps", "shares"),
    )


class NetworkBlock(ctypes.Structure):
    """`struct NetworkBlock` of kernels/cpu/network_stream.h."""

    _fields_ = (
        *_named(_POINTER, "layer"),
        *_named(_INT, "H", "memory", "place"),
        *_named(_POINTER, "layer_scale", "layer_shift", "conv_weight", "conv_bias", "history"),
        *_named(_INT, "history_place"),
        *_named(_POINTER, "projection_weight", "projection_bias", "unit_scale", "unit_shift"),
        *_named(_POINTER, "up_weight", "up_bias", "down_weight", "down_bias"),
    )


class Network(ctypes.Structure):
    """`struct Network` of kernels/cpu/network_stream.h."""

    _fields_ = (
        *_named(_INT, "is_double", "level", "B", "C", "W", "P", "K", "S"),
        *_named(_POINTER, "mean", "deviation", "embedding_weight", "embedding_bias", "blocks"),
        *_named(_INT, "block_count"),
        *_named(_POINTER, "scale", "shift"),
        *_named(_INT, "pooling_count"),
        *_named(_POINTER, "poolings", "count", "pooled", "head_weight", "head_bias"),
        *_named(_POINTER, "standardised", "x", "y", "layer_input", "layer_output", "up", "scores"),
    )


BlockCall = DepthwiseConv | BatchNorm | GatedUnit | PositiveCounts
"""The arguments of a kernel that `Library.run_block` runs."""

STRUCTS: tuple[type[ctypes.Structure], ...] = (
    Call, DepthwiseConv, BatchNorm, GatedUnit, PositiveCounts, ConvolutionStep, NetworkBlock, Network,
)  # fmt: skip
"""The mirrors of the library's structs."""


class _Field(ctypes.Structure):
    """`struct Field` of kernels/cpu/library.cpp: one field of a struct as compiled; a null name ends the list."""

    _fields_ = (("struct", ctypes.c_char_p), ("name", ctypes.c_char_p), ("offset", _INT), ("size", _INT))


class Library:
    """The loaded library."""

    def __init__(self, path: Path) -> None:
        code = ctypes.CDLL(str(path))
        signatures: list[tuple[Any, Any, list[Any]]] = [
            (code.mistrnn_best_level, _INT, []),
            (code.mistrnn_cell_names, ctypes.POINTER(ctypes.c_char_p), []),
            (code.mistrnn_fields, ctypes.POINTER(_Field), []),
            (code.mistrnn_run, _INT, [_POINTER, _INT, _INT]),
            (code.mistrnn_stream_new, _POINTER, [_POINTER, _INT]),
            (code.mistrnn_stream_step, None, [_POINTER, _POINTER, _POINTER, _INT]),
            (code.mistrnn_stream_free, None, [_POINTER]),
            (code.mistrnn_panel_bytes, _INT, [_INT]),
            (code.mistrnn_network_step, None, [_POINTER, _POINTER, _INT, _POINTER]),
            (code.mistrnn_convolution_step, None, [_POINTER, _POINTER, _INT, _POINTER, _INT]),
        ]
        self._blocks: dict[type[ctypes.Structure], Any] = {
            DepthwiseConv: code.mistrnn_depthwise_conv,
            BatchNorm: code.mistrnn_batch_norm,
            GatedUnit: code.mistrnn_glu,
            PositiveCounts: code.mistrnn_positive_counts,
        }
        signatures += [(function, _INT, [_POINTER, _INT]) for function in self._blocks.values()]
        for function, result, arguments in signatures:
            function.restype, function.argtypes = result, arguments
        _check_structs(code, path)
        self._code = code
        self.cells = {name: index for index, name in enumerate(_cells(code))}
        """The number of each cell that the library computes, by name."""
        self._team, self._team_size = _team()
        self.together = -1
        """Whether threads share one trial's weights: 1 yes, 0 no, -1 if it is faster."""
        self.stream_step = code.mistrnn_stream_step
        self.stream_free = code.mistrnn_stream_free
        self.network_step = code.mistrnn_network_step
        self.convolution_step = code.mistrnn_convolution_step
        self.level: int = code.mistrnn_best_level()
        """The index of the instruction set in INSTRUCTION_SETS."""

    def run(self, call: Call, *, backward: bool) -> None:
        """Run forward or backward."""
        call.team, call.team_size, call.together = self._team, self._team_size, self.together
        status = self._code.mistrnn_run(ctypes.byref(call), backward, self.level)
        if status == 1:
            raise MemoryError(f"not enough memory for {call.E} x {call.B} sequences of {call.T} steps")
        assert status == 0, "an unknown cell"

    def run_block(self, call: BlockCall) -> None:
        """Run a kernel of the network blocks."""
        call.team, call.team_size = self._team, self._team_size
        if self._blocks[type(call)](ctypes.byref(call), self.level):
            raise MemoryError(f"not enough memory for {call.E} x {call.B} sequences of {call.T} steps")

    def new_stream(self, call: Call) -> int:
        """Return the handle of a stream for `stream_step` and `stream_free`."""
        stream = self._code.mistrnn_stream_new(ctypes.byref(call), self.level)
        if not stream:
            raise MemoryError(f"not enough memory for a stream of {call.B} sequences")
        return int(stream)

    def panel_bytes(self) -> int:
        """Return the width of a panel of a matrix, as `network_step` reads it."""
        return int(self._code.mistrnn_panel_bytes(self.level))


def _cells(code: ctypes.CDLL) -> Iterator[str]:
    """Return the names of the compiled cells in the order of their numbers."""
    for name in code.mistrnn_cell_names():
        if name is None:
            return
        yield name.decode()


def _check_structs(code: ctypes.CDLL, path: Path) -> None:
    """Raise unless every field of a mirror has the name, offset and size of the compiled struct's."""
    compiled: dict[str, list[tuple[str, int, int]]] = {}
    for field in code.mistrnn_fields():
        if field.name is None:
            break
        compiled.setdefault(field.struct.decode(), []).append((field.name.decode(), field.offset, field.size))
    for struct in STRUCTS:
        mirrored = [(name, getattr(struct, name).offset, getattr(struct, name).size) for name, *_ in struct._fields_]
        if mirrored != compiled.get(struct.__name__):
            raise OSError(f"{path} is of another version of mistrnn: struct {struct.__name__} differs")


def _team() -> tuple[int | None, int | None]:
    """Return the addresses of GOMP_parallel and omp_get_num_threads in the OpenMP that torch has loaded, if there is one.

    Torch's threads keep spinning for some milliseconds after each of its operations; threads of our own would compete with
    them for the cores.
    """
    try:
        torch_code = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))
        functions = torch_code.GOMP_parallel, torch_code.omp_get_num_threads
        parallel, size = (ctypes.cast(function, _POINTER).value for function in functions)
        return parallel, size
    except (OSError, AttributeError):
        return None, None  # the library starts threads of its own


def _load() -> Library | str:
    if sys.platform not in ("linux", "darwin"):
        return f"there is no compiled code for {sys.platform}"
    if not PATH.exists():
        return f"mistrnn was installed without its compiled code ({PATH.name}); pip compiles it: `pip install .` in a checkout"
    try:
        return Library(PATH)
    except (OSError, AttributeError) as error:  # AttributeError: a function that an older library does not have
        return f"its compiled code cannot be loaded: {error}; install mistrnn again"


_found = _load()
loaded: Library | None = None if isinstance(_found, str) else _found
problem: str | None = _found if isinstance(_found, str) else None
"""Why there is no library. Set at import, so that torch.compile sees a constant."""
