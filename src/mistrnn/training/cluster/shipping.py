"""A task in parts that Ray can share: everything but its tensors as bytes, the tensors as arrays.

Arrays lie once in the shared memory of a node, and all workers of the node read them in place.
"""

import io
import pickle
import warnings
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mistrnn.training.trainer import Data

Packed = tuple[bytes, list[np.ndarray[Any, Any]]]


def packed(task: Data, pickler: Any = pickle.Pickler) -> Packed:
    """Return the parts of a task on the CPU; a tensor that it holds twice is there once.

    Ray's own pickler takes classes of a script or a notebook, too.
    """
    arrays: list[np.ndarray[Any, Any]] = []
    places: dict[tuple[Any, ...], int] = {}

    class Packer(pickler):  # type: ignore[misc]
        def persistent_id(self, value: Any) -> int | None:
            if not isinstance(value, Tensor):
                return None
            key = (value.data_ptr(), value.shape, value.stride(), value.dtype)
            if key not in places:
                places[key] = len(arrays)
                arrays.append(value.numpy())
            return places[key]

    buffer = io.BytesIO()
    Packer(buffer).dump(task)
    return buffer.getvalue(), arrays


def unpacked(packed_task: Packed) -> Data:
    """Return the task from its parts; it reads the arrays in place."""
    content, arrays = packed_task
    with warnings.catch_warnings():
        # A task's tensors are never written to: shared memory is read-only.
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        found: list[Tensor] = [torch.from_numpy(array) for array in arrays]

    class Unpacker(pickle.Unpickler):
        def persistent_load(self, place: int) -> Tensor:
            return found[place]

    task: Data = Unpacker(io.BytesIO(content)).load()
    return task
