"""The simple RNN as a module."""

from typing import Any

import torch
from torch import nn

from mistrnn._docstrings import inherits_arguments
from mistrnn.layers.rnn.cell import CELLS
from mistrnn.layers.torch_twin import TorchTwin


@inherits_arguments
class RNN(TorchTwin):
    """Simple RNN, as torch.nn.RNN; the equation is in `mistrnn.layers.rnn.reference`.

    Args:
        nonlinearity: "tanh" or "relu".

    Parameters of layer k (suffix `_reverse` for the second direction): `weight_ih_lk` [H, I], `weight_hh_lk` [H, H],
    `bias_ih_lk` [H], `bias_hh_lk` [H]; with `single_bias`, `bias_lk` [H].

    State: [layers * directions, B, H].

    >>> import torch
    >>> layer = RNN(input_size=3, hidden_size=5)
    >>> output, state = layer(torch.randn(7, 2, 3))
    >>> output.shape, state.shape
    (torch.Size([7, 2, 5]), torch.Size([1, 2, 5]))
    """

    cell = CELLS["tanh"]
    torch_class = nn.RNN

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        nonlinearity: str = "tanh",
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        single_bias: bool = False,
        zoneout: float = 0.0,
        recurrent_dropout: float = 0.0,
        layer_norm: bool = False,
    ) -> None:
        if nonlinearity not in CELLS:
            raise ValueError(
                f"{type(self).__name__}: expected nonlinearity to be one of {', '.join(CELLS)}, got {nonlinearity!r}."
            )
        super().__init__(
            input_size,
            hidden_size,
            num_layers,
            bias,
            batch_first,
            dropout,
            bidirectional,
            device,
            dtype,
            single_bias=single_bias,
            zoneout=zoneout,
            recurrent_dropout=recurrent_dropout,
            layer_norm=layer_norm,
        )
        self.nonlinearity = nonlinearity
        if nonlinearity == "relu":
            self.cell = CELLS["relu"]

    @property
    def mode(self) -> str:  # type: ignore[override]
        """Torch's name of the equation."""
        return f"RNN_{self.nonlinearity.upper()}"

    def torch_arguments(self) -> dict[str, Any]:
        """Return the arguments of torch's layer beyond those of every layer."""
        return {"nonlinearity": self.nonlinearity}

    @classmethod
    def twin_arguments(cls, module: nn.RNNBase) -> dict[str, Any]:
        """Return the further arguments of a twin of this module."""
        return {"nonlinearity": module.nonlinearity}

    def own_arguments(self) -> list[str]:
        """Return further arguments for the repr."""
        return [] if self.nonlinearity == "tanh" else [f"nonlinearity={self.nonlinearity!r}"]
