"""Several processes that train the same models, each on its share of every batch, as `torchrun` starts them.

Gradients, losses and errors are sums over processes, so that the result is that of one process with the whole batch.
"""

import contextlib
import os
import socket
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from mistrnn.errors import UsageError

MEETING_TIME = timedelta(seconds=60)
"""How long the processes wait for each other at the start."""


@dataclass(frozen=True)
class Processes:
    """All processes, and which of them this one is."""

    rank: int = 0
    count: int = 1

    def share(self, lengths: Tensor) -> Tensor:
        """Return which sequences of a batch are this process's: places [E, b] in lengths [E, B].

        Sequences of similar length stay together, which saves padding, and a process with long ones has fewer: all
        processes have about the same number of padded steps. All trials have equally many.

        >>> [Processes(rank, 2).share(torch.tensor([[9, 2, 1, 3]])).tolist() for rank in range(2)]
        [[[0]], [[3, 1, 2]]]
        """
        ordered, order = lengths.sort(dim=1, descending=True, stable=True)
        bounds = _bounds(ordered.amax(0).tolist(), self.count)
        return order[:, bounds[self.rank] : bounds[self.rank + 1]]

    def total(self, *tensors: Tensor) -> list[Tensor]:
        """Return the sums of tensors of one dtype over all processes, the same bits on each."""
        if self.count == 1:
            return list(tensors)
        flat = torch.cat([tensor.reshape(-1) for tensor in tensors])
        with _lost_processes_named():
            dist.all_reduce(flat)
        parts = torch.split(flat, [tensor.numel() for tensor in tensors])
        return [part.view(tensor.shape) for part, tensor in zip(parts, tensors, strict=True)]

    def broadcast(self, thing: Any = None) -> Any:
        """Return the object of the first process; all processes wait for it."""
        if self.count == 1:
            return thing
        carried = [thing]
        with _lost_processes_named():
            dist.broadcast_object_list(carried, src=0)
        return carried[0]

    def agree(self, thing: Any) -> bool:
        """Whether all processes give the same."""
        if self.count == 1:
            return True
        given = [None] * self.count
        with _lost_processes_named():
            dist.all_gather_object(given, thing)
        return all(one == given[0] for one in given)


ALONE = Processes()


def process_rank() -> int:
    """Return the number of this process among those that torchrun started; 0 without it."""
    return int(os.environ.get("RANK", "0"))


def process_count() -> int:
    """Return how many processes torchrun started."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def joined(device: torch.device) -> Processes:
    """Join the processes that torchrun started, once for the life of this process; without torchrun there is one."""
    if process_count() == 1:
        return ALONE
    if not dist.is_initialized():
        _join(device)
    return Processes(dist.get_rank(), dist.get_world_size())


def _join(device: torch.device) -> None:
    loopback = [name for _, name in socket.if_nameindex() if name in ("lo", "lo0")]
    if loopback and os.environ.get("LOCAL_WORLD_SIZE") == os.environ["WORLD_SIZE"]:
        # All processes are on this machine: their traffic stays on the loopback interface.
        os.environ.setdefault("GLOO_SOCKET_IFNAME", loopback[0])
        os.environ.setdefault("NCCL_SOCKET_IFNAME", loopback[0])
    if device.type == "cuda":
        torch.cuda.set_device(device)
    try:
        # The default is to wait for the others for half an hour.
        store, rank, count = next(dist.rendezvous("env://", timeout=MEETING_TIME))  # type: ignore[attr-defined]
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo", store=store, rank=rank, world_size=count)
    except (ValueError, RuntimeError) as error:
        raise UsageError(
            f"cannot join the other {process_count() - 1} processes that WORLD_SIZE={process_count()} asks for ({error}); "
            "start all of them with torchrun."
        ) from error
    # Not destroyed after a study: a second rendezvous through the same store would find the keys of the first.


def leave(status: int) -> None:
    """End a process that has joined others, at once; do nothing in one that has not.

    On the usual way out torch's connections are taken apart while their threads still run, which at times ends a process
    that has done all its work with an abort, and torchrun then takes the job for failed.
    """
    if dist.is_available() and dist.is_initialized():
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


@contextlib.contextmanager
def _lost_processes_named() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        raise UsageError(
            f"another process was lost ({error}). What was saved is intact; the same command goes on from there."
        ) from error


def _bounds(lengths: Sequence[int], count: int) -> list[int]:
    """Cut lengths, the longest first, into so many parts that the largest (longest times number) is as small as can be.

    >>> _bounds([10, 5, 5, 5, 5], 3)
    [0, 1, 3, 5]
    """

    def cut(most: int) -> list[int]:
        bounds = [0]
        while bounds[-1] < len(lengths) and len(bounds) <= count:
            longest = max(1, lengths[bounds[-1]])
            bounds.append(min(len(lengths), bounds[-1] + most // longest))
        return bounds

    low, high = max([1, *lengths[:1]]), max(1, len(lengths) * max([1, *lengths[:1]]))
    while low < high:
        middle = (low + high) // 2
        if cut(middle)[-1] == len(lengths):
            high = middle
        else:
            low = middle + 1
    bounds = cut(low)
    return bounds + [len(lengths)] * (count + 1 - len(bounds))
