"""Several networks that answer as one: the weighted mean of their probabilities, or of their numbers.

T time, B batch, C channels, K scores.
"""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor, nn

from mistrnn.models.network import NetworkState, SequenceNetwork
from mistrnn.models.random_convolutions import RandomConvolutions
from mistrnn.models.standardisation import Standardisation

if TYPE_CHECKING:
    from mistrnn.models._stream import EnsembleStream

Answer = Literal["classes", "numbers"]
Member = SequenceNetwork | RandomConvolutions


class Ensemble(nn.Module):
    """The weighted mean of several networks, with the interface of one.

    Args:
        members: networks with the same inputs, outputs and standardisation; their shapes may differ.
        answer: "classes" for the mean of probabilities, returned as logarithms; "numbers" for the mean of scores.
        weights: positive, one for each member; they are scaled to sum to 1. Equal ones if None.

    >>> members = [SequenceNetwork(2, 3, hidden_size=8).eval() for _ in range(2)]
    >>> scores, _ = Ensemble(members)(torch.randn(9, 4, 2))
    >>> torch.allclose(scores.exp().sum(-1), torch.ones(4))  # logarithms of probabilities
    True
    """

    def __init__(
        self, members: Sequence[Member], answer: Answer = "classes", weights: Sequence[float] | None = None
    ) -> None:
        super().__init__()
        if not members:
            raise ValueError(f"{type(self).__name__}: expected at least one member, got none.")
        first = members[0]
        recurrent = [member for member in members if isinstance(member, SequenceNetwork)]
        for name in ("input_size", "output_size", "every_step", "bidirectional"):
            # Random convolutions answer for a whole sequence in the same way next to either kind of network.
            values = [getattr(member, name) for member in (recurrent if name == "bidirectional" else members)]
            if any(value != values[0] for value in values):
                raise ValueError(f"{type(self).__name__}: expected members of the same {name}, got {values}.")
        weights = [1.0] * len(members) if weights is None else [float(weight) for weight in weights]
        if len(weights) != len(members) or not all(0 < weight < math.inf for weight in weights):
            raise ValueError(
                f"{type(self).__name__}: expected {len(members)} positive weights, one for each member, got {weights}."
            )
        self.members = nn.ModuleList(members)
        self.answer = answer
        self.weights = tuple(weight / math.fsum(weights) for weight in weights)
        self.input_size, self.output_size = first.input_size, first.output_size
        self.every_step = first.every_step
        self.bidirectional = any(member.bidirectional for member in members)

    @property
    def networks(self) -> list[SequenceNetwork]:
        """The recurrent members."""
        return [member for member in self.members if isinstance(member, SequenceNetwork)]

    @property
    def standardisation(self) -> Standardisation:
        """Mean, scale and transform of the input's channels."""
        return self._members[0].standardisation

    @property
    def state_names(self) -> tuple[str, ...]:
        """The names of the tensors of the state."""
        return tuple(f"member{n}_{name}" for n, one in enumerate(self._members) for name in one.state_names)

    def parameter_count(self) -> int:
        """Return the number of weights of all members."""
        return sum(member.parameter_count() for member in self._members)

    def initial_state(self, batch_size: int) -> NetworkState:
        """Return the state before the first step."""
        return tuple(tensor for member in self._members for tensor in member.initial_state(batch_size))

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
        for member in self._members:
            count = len(member.state_names) if state else 0
            own, rest = tuple(rest[:count]), rest[count:]
            found, new = member(input, own or None, lengths=lengths, every_step=every_step, keep_state=keep_state)
            scores.append(found)
            after.extend(new)
        return combined(scores, self.answer, self.weights), tuple(after)

    def stream(self, batch_size: int = 1, state: NetworkState | None = None) -> "EnsembleStream":
        """Return a stream of all members; see `SequenceNetwork.stream`."""
        from mistrnn.models._stream import EnsembleStream  # which imports this file

        return EnsembleStream(self, batch_size, state)

    @property
    def _members(self) -> list[Member]:
        return list(self.members)  # type: ignore[arg-type]


def combined(scores: Sequence[Tensor], answer: Answer, weights: Sequence[float]) -> Tensor:
    """Return the answer of several members from their scores [..., K] each; the weights sum to 1."""
    if len(scores) == 1:
        return scores[0]
    together = torch.stack(list(scores))
    shares = together.new_tensor(weights).view(-1, *[1] * scores[0].dim())
    if answer == "numbers":
        return (shares * together).sum(0)
    return (together.log_softmax(-1) + shares.log()).logsumexp(0)
