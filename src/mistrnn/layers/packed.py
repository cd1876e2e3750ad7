"""Indices of a PackedSequence. torch's own functions to pad and pack do not work under torch.func."""

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence


def packed_indices(packed: PackedSequence, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return the time and the sequence of each packed row; sequences are in the order before sorting by length."""
    sizes = packed.batch_sizes
    times = torch.arange(len(sizes), device=sizes.device).repeat_interleave(sizes)
    rows = torch.arange(len(times), device=sizes.device) - (sizes.cumsum(0) - sizes)[times]
    times, rows = times.to(device), rows.to(device)
    return times, rows if packed.sorted_indices is None else packed.sorted_indices[rows]
