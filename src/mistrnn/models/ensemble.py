"""Several networks that answer as one: the mean of their probabilities, or of their numbers.

T time, B batch, C channels, K scores.
"""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor, nn

from mistrnn.models.network import NetworkState, SequenceNetwork

if TYPE_CHECKING:
    from mistrnn.models._stream import EnsembleStream

Answer = Literal["classes", "numbers"]


class Ensemble(nn.Module):
    """The mean of several networks, with the interface of one.

    Args:
        members: networks with the same inputs, outputs and standardisation; their shapes may differ.
        answer: "classes" for the mean of probabilities, returned as logarithms; "numbers" for the mean of scores.

    >>> members = [SequenceNetwork(2, 3, hidden_size=8).eval() for _ in range(2)]
    >>> scores, _ = Ensemble(members)(torch.randn(9, 4, 2))
    >>> torch.allclose(scores.exp().sum(-1), torch.ones(4))  # logarithms of probabilities
    True
    """

    def __init__(self, members: Sequence[SequenceNetwork], answer: Answer = "classes") -> None:
        super().__init__()
        if not members:
            raise ValueError(f"{type(self).__name__}: expected at least one member, got none.")
        first = members[0]
        for name in ("input_size", "output_size", "every_step", "bidirectional"):
            if any(getattr(member, name) != getattr(first, name) for member in members):
                values = [getattr(member, name) for member in members]
                raise ValueError(f"{type(self).__name__}: expected members of the same {name}, got {values}.")
        self.members = nn.ModuleList(members)
        self.answer = answer
        self.input_size, self.output_size = first.input_size, first.output_size
        self.every_step, self.bidirectional = first.every_step, first.bidirectional

    @property
    def networks(self) -> list[SequenceNetwork]:
        """The members."""
        return list(self.members)  # type: ignore[arg-type]

    @property
    def mean(self) -> Tensor:
        """The mean of the inputs' channels [C]."""
        return self.networks[0].mean

    @property
    def scale(self) -> Tensor:
        """The deviation of the inputs' channels [C]."""
        return self.networks[0].scale

    @property
    def state_names(self) -> tuple[str, ...]:
        """The names of the tensors of the state."""
        return tuple(f"member{n}_{name}" for n, one in enumerate(self.networks) for name in one.state_names)

    def parameter_count(self) -> int:
        """Return the number of weights of all members."""
        return sum(member.parameter_count() for member in self.networks)

    def initial_state(self, batch_size: int) -> NetworkState:
        """Return the state before the first step."""
        return tuple(tensor for member in self.networks for tensor in member.initial_state(batch_size))

    def forward(
        self,
        input: Tensor,
        state: NetworkState | None = None,
        *,
        lengths: Tensor | None = None,
        every_step: bool | None = None,
        keep_state: bool = True,
    ) -> tuple[Tensor, NetworkState]:
        """Return the scores and the state to go on from; arguments as in `SequenceNetwork.forward`."""
        scores, after, rest = [], [], list(state or ())
        for member in self.networks:
            count = len(member.state_names) if state else 0
            own, rest = tuple(rest[:count]), rest[count:]
            found, new = member(input, own or None, lengths=lengths, every_step=every_step, keep_state=keep_state)
            scores.append(found)
            after.extend(new)
        return combined(scores, self.answer), tuple(after)

    def stream(self, batch_size: int = 1, state: NetworkState | None = None) -> "EnsembleStream":
        """Return a stream of all members; see `SequenceNetwork.stream`."""
        from mistrnn.models._stream import EnsembleStream  # which imports this file

        return EnsembleStream(self, batch_size, state)


def combined(scores: Sequence[Tensor], answer: Answer) -> Tensor:
    """Return the answer of several members from their scores [..., K] each."""
    if len(scores) == 1:
        return scores[0]
    together = torch.stack(list(scores))
    if answer == "numbers":
        return together.mean(0)
    return together.log_softmax(-1).logsumexp(0) - math.log(len(scores))
