"""A computation on the GPU recorded once and replayed: thousands of small launches become one."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from mistrnn._torch_compat import tree_map

WARM_UPS = 2
"""Runs before the recording, so that libraries have chosen their algorithms and taken their memory."""


class Captured:
    """A function of tensors as a CUDA graph.

    Everything else that the function reads must stay where it is in memory: it is read from there at each replay. The
    results are overwritten by the next call.
    """

    def __init__(self, function: Callable[..., Any], *arguments: Tensor) -> None:
        self._arguments = [argument.clone() for argument in arguments]
        with torch.cuda.device(arguments[0].device):  # the computation's own, which need not be the current one
            side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                for _ in range(WARM_UPS):
                    function(*self._arguments)
            torch.cuda.current_stream().wait_stream(side)
            self._graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self._graph, stream=side):
                self._results = function(*self._arguments)
        # A replay never goes through autograd, so the graph of the recorded run is dropped.
        self._results = tree_map(lambda value: value.detach(), self._results)

    def __call__(self, *arguments: Tensor) -> Any:
        """Return the results for new arguments of the same shapes."""
        for kept, argument in zip(self._arguments, arguments, strict=True):
            kept.copy_(argument)
        self._graph.replay()
        return self._results
