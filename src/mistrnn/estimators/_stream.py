"""A fitted estimator that reads one row after another, as they are measured."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from mistrnn.errors import UsageError
from mistrnn.estimators._sequences import FARTHEST, too_far
from mistrnn.estimators.network import AnyNetwork


class EstimatorStream:
    """`stream(row)` for each new row [channels] returns what the estimator would predict if the case ended here.

    Made by the `stream` method of an estimator. Time and memory of a call do not depend on how many came before.
    """

    def __init__(self, network: AnyNetwork, spoken: Callable[[Tensor], Any]) -> None:
        self._network, self._spoken = network, spoken
        self._standardisation, self._device = network.standardisation.to("cpu"), network.standardisation.mean.device
        self._stream = network.stream(1)
        self._fresh = False
        self.rows = 0
        """Rows since the case began."""

    @torch.no_grad()
    def __call__(self, row: ArrayLike) -> Any:
        """Take a row and return the prediction after it."""
        network, values = self._network, np.asarray(row, dtype=np.float64)
        if values.shape != (network.input_size,):
            raise UsageError(
                f"expected a row of {network.input_size} numbers, one for each channel, got {list(values.shape)}."
            )
        if not np.isfinite(values).all():
            raise UsageError(f"expected finite numbers, got {values.tolist()}.")
        if too_far(values, self._standardisation).any():
            raise UsageError(
                f"expected numbers less than {FARTHEST:g} deviations from the mean of what was learnt, got {values.tolist()}."
            )
        reset = torch.ones(1, dtype=torch.bool, device=self._device) if self._fresh else None
        self._fresh = False
        scores = self._stream(torch.from_numpy(values).unsqueeze(0).to(self._device), reset)
        self.rows += 1
        return self._spoken(scores[0].cpu())

    def reset(self) -> None:
        """Let a new case begin with the next row."""
        self._fresh, self.rows = True, 0
