"""Arguments of the recurrent kernels. The tests compare every mirror of a CUDA struct with it field by field."""

import ctypes
from typing import Any


def pointers(*names: str) -> list[tuple[str, Any]]:
    """Return fields that point to device memory."""
    return [(name, ctypes.c_void_p) for name in names]


def numbers(*names: str) -> list[tuple[str, Any]]:
    """Return integer fields."""
    return [(name, ctypes.c_int64) for name in names]


class Arguments(ctypes.Structure):
    """The arguments of a kernel; mirrors `Arguments` in arguments.cuh."""

    _fields_ = (
        *numbers("E", "T", "B"),
        *pointers("x"),
        *numbers("x_trial", "x_time", "x_sequence"),
        *pointers("projected", "weight_ih", "weight_hh", "weight_ch", "bias", "bias_hn", "gain"),
        *numbers("weight_ih_trial", "weight_hh_trial", "weight_ch_trial", "bias_trial", "bias_hn_trial", "gain_trial"),
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
        *pointers("dz", "mixed", "workspace", "sums", "d_initial_h", "d_initial_c", "d_probe_h", "d_probe_c"),
    )
