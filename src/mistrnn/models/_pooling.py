"""From the frames of a sequence to one vector: its last frame, its mean, its maximum, or several of them side by side.

T time, B batch, C channels.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from mistrnn.models._frames import ForwardPass

POOLINGS = ("last", "mean", "max")

PoolingState = tuple[Tensor, ...]
"""count [B] and, in the order of the poolings, one tensor [B, C] each: last frame, running mean, running maximum."""


class Pooling(nn.Module):
    """Pools the valid frames of each sequence.

    Args:
        kinds: some of last, mean and max, as a list or joined with +.

    >>> x = torch.tensor([[[1.0]], [[5.0]], [[3.0]]])  # [T, B, C]
    >>> Pooling("last+mean+max")(x, None, ForwardPass.of(x, None))[0]
    tensor([[3., 3., 5.]])
    """

    def __init__(self, kinds: str | Sequence[str]) -> None:
        super().__init__()
        self.kinds = tuple(kinds.split("+") if isinstance(kinds, str) else kinds)
        unknown = [kind for kind in self.kinds if kind not in POOLINGS]
        if unknown or not self.kinds or len(set(self.kinds)) < len(self.kinds):
            raise ValueError(
                f"expected pooling to be some of {', '.join(POOLINGS)}, each once and joined with +, got {kinds!r}."
            )

    def forward(self, x: Tensor, state: PoolingState | None, current: ForwardPass) -> tuple[Tensor, PoolingState]:
        """Return the pooled frames [B, len(kinds) * C] of all steps so far, and the state to go on from."""
        steps, batch = x.shape[:2]
        new = current.lengths if current.lengths is not None else torch.full((batch,), steps, device=x.device)
        count, *before = state or (torch.zeros_like(new), *(x.new_zeros(x.shape[1:]) for _ in self.kinds))
        after = [
            getattr(self, f"_{kind}")(x, one, count, new, current) for kind, one in zip(self.kinds, before, strict=True)
        ]
        return torch.cat(after, -1), (count + new, *after)

    def every_step(self, x: Tensor) -> Tensor:
        """Return what is pooled if the sequences ended at each of their steps, [T, B, len(kinds) * C], from their begin."""
        count = torch.arange(1, x.size(0) + 1, dtype=x.dtype, device=x.device).view(-1, 1, 1)
        running = {"last": lambda: x, "mean": lambda: x.cumsum(0) / count, "max": lambda: x.cummax(0).values}
        return torch.cat([running[kind]() for kind in self.kinds], -1)

    @staticmethod
    def _last(x: Tensor, before: Tensor, count: Tensor, new: Tensor, current: ForwardPass) -> Tensor:
        if current.lengths is None:
            return x[-1] if x.size(0) else before
        if not x.size(0):
            return before
        place = (new - 1).clamp_min(0).view(1, -1, 1).expand(1, -1, x.size(2))
        return torch.where((new > 0).unsqueeze(-1), x.gather(0, place).squeeze(0), before)

    @staticmethod
    def _mean(x: Tensor, before: Tensor, count: Tensor, new: Tensor, current: ForwardPass) -> Tensor:
        total = current.clear_padding(x).sum(0)
        share = (count + new).clamp_min(1).unsqueeze(-1).to(x.dtype)
        # From the mean so far, not from a sum: a stream may run for millions of steps.
        return before + (total - before * new.unsqueeze(-1)) / share

    @staticmethod
    def _max(x: Tensor, before: Tensor, count: Tensor, new: Tensor, current: ForwardPass) -> Tensor:
        if not x.size(0):
            return before
        highest = current.clear_padding(x, -torch.inf).amax(0)
        before = torch.where((count > 0).unsqueeze(-1), before, highest)
        return torch.where((new > 0).unsqueeze(-1), torch.maximum(before, highest), before)
