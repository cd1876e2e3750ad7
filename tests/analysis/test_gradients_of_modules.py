"""Gradient norms of any module: torch's layers and cells, cells of users, several modules, layers run in pieces."""

from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

from mistrnn.analysis import gradient_norms
from mistrnn.layers import LAYERS, MIST
from tests.analysis.modules import Unrolled, Wrapped
from tests.layers.cases import seeded

PAIRS = [(nn.RNN, nn.RNNCell), (nn.LSTM, nn.LSTMCell), (nn.GRU, nn.GRUCell)]
LAYER_KINDS = [*LAYERS.values(), nn.RNN, nn.LSTM, nn.GRU]
AFRESH = "expected layer to run once over the sequence, or piece after piece with its state handed on, got a later call without"
STEPS, BATCH = 12, 3


class OwnCell(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.x, self.h = nn.Linear(3, 5), nn.Linear(5, 5)

    def forward(self, x: Tensor, h: Tensor | None) -> Tensor:
        return torch.tanh(self.x(x) + (self.h(h) if h is not None else 0))


@pytest.mark.parametrize(("layer_class", "cell_class"), PAIRS)
def test_torch_layers_and_torch_cells_agree(layer_class: Any, cell_class: Any) -> None:
    with seeded(5):
        whole, unrolled = Wrapped(layer_class(3, 5)).double(), Unrolled(cell_class(3, 5)).double()
        input = torch.randn(STEPS, BATCH, 3).double()
    with torch.no_grad():
        for name, parameter in unrolled.cell.named_parameters():
            parameter.copy_(getattr(whole.layer, f"{name}_l0"))
        for ours, theirs in zip(unrolled.readout.parameters(), whole.readout.parameters(), strict=True):
            ours.copy_(theirs)
    before = whole.layer.forward
    one, other = (gradient_norms(model, input, lambda scores: scores[:, 0].sum()) for model in (whole, unrolled))
    assert one.states.keys() == other.states.keys()
    for state, norms in one.states.items():
        torch.testing.assert_close(norms, other.states[state], rtol=1e-10, atol=1e-14)
    assert whole.layer.forward == before  # the twin has left
    assert all(parameter.grad is None for parameter in whole.parameters())


def test_a_users_cell_is_watched_by_name() -> None:
    with seeded(6):
        model, input = Unrolled(OwnCell()).double(), torch.randn(STEPS, BATCH, 3).double()
    found = gradient_norms(model, input, lambda scores: scores.sum(), watch=model.cell)
    derivative = model.readout.weight.sum(0).expand(BATCH, -1)
    states = [torch.zeros(BATCH, 5, dtype=torch.float64)]
    for x in input:
        states.append(torch.tanh(model.cell.x(x) + (model.cell.h(states[-1]) if len(states) > 1 else 0)))
    expected = []
    for h in reversed(states[1:]):  # the chain rule of a simple RNN, by hand
        expected.append(derivative.norm(dim=-1).mean())
        derivative = (derivative * (1 - h**2)) @ model.cell.h.weight
    torch.testing.assert_close(found.h, torch.stack(expected), rtol=1e-10, atol=1e-14)


class Pair(NamedTuple):
    h: Tensor
    again: Tensor


@pytest.mark.parametrize(
    ("wrap", "read"),
    [
        (lambda h: (h, h), lambda out: out[1]),
        (lambda h: [h, (h, 2 * h)], lambda out: out[1][0]),
        (lambda h: Pair(h, h), lambda out: out.again),
    ],
)
def test_a_state_counts_wherever_it_stands_in_what_a_cell_returns(wrap: Any, read: Any) -> None:
    class Wrapping(OwnCell):
        def forward(self, x: Tensor, h: Any) -> Any:
            return wrap(super().forward(x, None if h is None else read(h)))

    class Reading(Unrolled):
        def forward(self, input: Tensor) -> Tensor:
            state: Any = None
            for x in input:
                state = self.cell(x, state)
            return self.readout(read(state))

    with seeded(6):
        plain, input = Unrolled(OwnCell()).double(), torch.randn(STEPS, BATCH, 3).double()
    wrapped = Reading(Wrapping()).double()
    wrapped.load_state_dict(plain.state_dict())
    expected, found = (gradient_norms(m, input, lambda s: s.sum(), watch=m.cell) for m in (plain, wrapped))
    torch.testing.assert_close(found.h, expected.h)


def test_several_recurrent_modules_are_told_apart() -> None:
    model = nn.Sequential()
    model.first, model.second = MIST(3, 4, delays=2), nn.GRU(4, 5)
    model.forward = lambda x: model.second(model.first(x)[0])[0]  # type: ignore[method-assign]
    found = gradient_norms(model, torch.randn(6, 2, 3), lambda output: output[-1].sum())
    assert list(found.states) == ["first.h", "second.h"]
    model.reverse_decoder, model.second = model.second, None
    model.forward = lambda x: model.reverse_decoder(model.first(x)[0])[0]  # type: ignore[method-assign]
    renamed = gradient_norms(model, torch.randn(6, 2, 3), lambda output: output[-1].sum())
    assert renamed.h is renamed.states["reverse_decoder.h"]
    only = gradient_norms(model, torch.randn(6, 2, 3), lambda output: output[-1].sum(), watch=[model.first])
    assert list(only.states) == ["h"]


class InTwo(nn.Module):
    """A layer that is called twice, with or without its state handed on."""

    def __init__(self, layer: nn.Module, handed_on: bool, directly: bool = False, **options: Any) -> None:
        super().__init__()
        self.layer, self.handed_on, self.directly, self.options = layer, handed_on, directly, options

    def forward(self, input: Tensor) -> Tensor:
        call = self.layer.forward if self.directly else self.layer
        first, state = call(input[:5])
        second, _ = call(input[5:], *((state,) if self.handed_on else ()), **self.options)
        return first[-1].sum() + second[-1].sum()


@pytest.mark.parametrize("kind", LAYER_KINDS)
@pytest.mark.parametrize("directly", [False, True])
def test_a_layer_runs_in_pieces_with_its_state_handed_on_and_not_without(kind: Any, directly: bool) -> None:
    with seeded(8):
        layer, input = kind(3, 8).double(), torch.randn(9, 2, 3).double()
    expected = gradient_norms(layer, input, lambda result: result[0][4].sum() + result[0][-1].sum())
    found = gradient_norms(InTwo(layer, True, directly), input, lambda value: value)
    torch.testing.assert_close(found.h, expected.h, rtol=1e-10, atol=1e-14)
    for options in ({}, {"hx": None} if isinstance(layer, nn.RNNBase) else {"state": None}):
        with pytest.raises(ValueError, match=AFRESH):
            gradient_norms(InTwo(layer, False, directly, **options), input, lambda value: value)
    assert "forward" not in vars(layer)
    gradient_norms(layer, input, lambda result: result[0][-1].sum())  # nothing is remembered


@pytest.mark.parametrize("cell_class", [nn.RNNCell, nn.LSTMCell, nn.GRUCell])
def test_a_cell_that_begins_a_second_sequence_is_refused(cell_class: Any) -> None:
    class Twice(Unrolled):
        def forward(self, input: Tensor) -> Tensor:
            return super().forward(input[:5]) + super().forward(input[5:])

    with seeded(8):
        model, input = Twice(cell_class(3, 5)), torch.randn(9, 2, 3)
    with pytest.raises(ValueError, match=AFRESH.replace("layer", "cell")):
        gradient_norms(model, input, lambda scores: scores.sum())


def test_a_layer_that_keeps_its_state_itself_runs_piece_after_piece() -> None:
    class Remembering(MIST):
        state: Any = None

        def forward(self, input: Tensor) -> Any:  # type: ignore[override]
            output, self.state = super().forward(input, self.state)
            return output, self.state

    with seeded(8):
        layer, input = Remembering(3, 5, delays=[1, 2]).double(), torch.randn(9, 2, 3).double()
    found = gradient_norms(InTwo(layer, False), input, lambda value: value)
    layer.state = None
    expected = gradient_norms(layer, input, lambda result: result[0][4].sum() + result[0][-1].sum())
    torch.testing.assert_close(found.h, expected.h, rtol=1e-10, atol=1e-14)
