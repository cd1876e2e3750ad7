"""What the GPU kernels are handed: the same fields in the same order as in their own source."""

import ctypes
from typing import Any


def pointers(*names: str) -> list[tuple[str, Any]]:
    """Return fields that point to a GPU's memory."""
    return [(name, ctypes.c_void_p) for name in names]


def numbers(*names: str) -> list[tuple[str, Any]]:
    """Return fields that are whole numbers."""
    return [(name, ctypes.c_int64) for name in names]


class Arguments(ctypes.Structure):
    """What a kernel is handed; `Arguments` in kernels/cuh/arguments.cuh has the same fields in the same order."""

    _fields_ = (
        *numbers("E", "T", "B"),
        *pointers("x"),
        *numbers("x_trial", "x_time", "x_sequence"),
        *pointers("projected", "weight_ih", "weight_hh", "bias", "bias_hn", "gain"),
        *numbers("weight_ih_trial", "weight_hh_trial", "bias_trial", "bias_hn_trial", "gain_trial"),
        *pointers("packed", "initial_h", "initial_c"),
        *numbers("initial_h_trial", "initial_c_trial"),
        *pointers("clock", "lengths"),
        *numbers("clock_trial", "lengths_trial"),
        *pointers("origin"),
        *numbers("origin_trial"),
        *pointers("keep_h", "keep_c"),
        *numbers("keep_h_trial", "keep_c_trial"),
        *pointers("dropout"),
        *numbers("dropout_trial"),
        ("zoneout", ctypes.c_double),
        *pointers("output", "final_h", "final_c", "saved"),
        *numbers("saved_trial", "saved_block"),
        *pointers("d_output"),
        *numbers("d_output_trial", "d_output_time", "d_output_sequence"),
        *pointers("d_final_h", "d_final_c"),
        *numbers("d_final_h_trial", "d_final_c_trial"),
        *pointers("dz", "mixed", "ring", "sums", "d_initial_h", "d_initial_c", "d_probe_h", "d_probe_c"),
    )
