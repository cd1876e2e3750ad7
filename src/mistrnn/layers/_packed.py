"""Where the rows of a PackedSequence belong. torch's own pad and pack would do, but not under torch.func."""

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence


def places(packed: PackedSequence, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return the time and the sequence of each packed row, in the caller's order of sequences and not sorted by length."""
    sizes = packed.batch_sizes
    times = torch.arange(len(sizes), device=sizes.device).repeat_interleave(sizes)
    rows = torch.arange(len(times), device=sizes.device) - (sizes.cumsum(0) - sizes)[times]
    times, rows = times.to(device), rows.to(device)
    return times, rows if packed.sorted_indices is None else packed.sorted_indices[rows]
