"""`convert`: recurrent layers inside any model, with their parameters, hooks, optimizer state and modes."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence

import mistrnn
from mistrnn import GRU, LSTM, RNN, convert
from mistrnn.layers.conversion import MatchedMIST
from tests.layers.cases import close


class Tagger(nn.Module):
    """A bidirectional tagger, as it stands in many code bases."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(30, 8)
        self.lstm = nn.LSTM(8, 12, num_layers=3, bidirectional=True, batch_first=True, dropout=0.2)
        self.readout = nn.Linear(24, 5)

    def forward(self, tokens: Tensor) -> Tensor:
        output, (h, _) = self.lstm(self.embedding(tokens))
        return self.readout(output + torch.cat([h[-2], h[-1]], -1).unsqueeze(1))


TOKENS = torch.arange(42).reshape(3, 14) % 30


def test_tagger_is_the_same_function_and_trains_on() -> None:
    torch.manual_seed(0)
    model, twin = Tagger(), Tagger()
    twin.load_state_dict(model.state_dict())
    optimizers = [torch.optim.Adam(one.parameters(), lr=1e-2) for one in (model, twin)]
    for step in range(6):
        for one, optimizer in zip((model, twin), optimizers, strict=True):
            one.eval()  # without dropout
            optimizer.zero_grad()
            one(TOKENS).square().mean().backward()
            optimizer.step()
        if step == 2:
            conversion = convert(model)
            assert type(model.lstm) is LSTM
    torch.testing.assert_close(model(TOKENS), twin(TOKENS), rtol=1e-4, atol=1e-5)
    for (name, parameter), (_, expected) in zip(model.named_parameters(), twin.named_parameters(), strict=True):
        torch.testing.assert_close(parameter, expected, rtol=1e-3, atol=1e-5, msg=name)
    (swap,) = conversion.swaps
    assert swap.name == "lstm"
    assert swap.difference is not None
    assert swap.difference < 1e-6
    assert "torch.nn.LSTM(8, 12" in str(conversion)
    assert "mistrnn.LSTM(8, 12" in str(conversion)


def test_conversion_keeps_the_parameter_objects_modes_and_frozen_parameters() -> None:
    model = nn.ModuleDict({"a": nn.GRU(3, 4).eval(), "b": nn.RNN(4, 4, nonlinearity="relu")})
    model["a"].weight_hh_l0.requires_grad_(False)
    before = dict(model.named_parameters())
    convert(model)
    assert [type(module) for module in model.values()] == [GRU, RNN]
    assert {name: id(parameter) for name, parameter in model.named_parameters()} == {
        name: id(parameter) for name, parameter in before.items()
    }
    assert not model["a"].training
    assert model["b"].training
    assert model["b"].nonlinearity == "relu"
    assert not model["a"].weight_hh_l0.requires_grad


def test_shared_layer_stays_shared_and_the_model_itself_may_be_a_layer() -> None:
    layer = nn.LSTM(3, 4)
    model = nn.ModuleList([layer, nn.Linear(4, 4), layer])
    conversion = convert(model)
    assert model[0] is model[2]
    assert len(conversion.swaps) == 1
    assert type(convert(nn.GRU(3, 4)).model) is GRU


def test_hooks_are_kept_and_called() -> None:
    layer, calls = nn.LSTM(3, 4), []
    layer.register_forward_pre_hook(lambda module, arguments: calls.append("before"))
    layer.register_forward_hook(lambda module, arguments, output: calls.append("after"))
    layer.register_full_backward_hook(lambda module, given, found: calls.append("backward"))
    layer.weight_hh_l0.register_hook(lambda gradient: calls.append("gradient"))
    model = nn.ModuleDict({"layer": layer})
    convert(model)
    calls.clear()  # measuring the difference does not call hooks
    model["layer"](torch.zeros(2, 1, 3, requires_grad=True))[0].sum().backward()
    assert calls == ["before", "after", "gradient", "backward"]


def test_weights_that_hooks_compute_are_converted_with_them() -> None:
    with pytest.warns(FutureWarning, match="weight_norm"):
        layer = nn.utils.weight_norm(nn.LSTM(3, 4), "weight_hh_l0")
    input = torch.randn(5, 2, 3)
    expected = layer(input)[0]
    converted = convert(layer).model
    torch.testing.assert_close(converted(input)[0], expected)
    with torch.no_grad():
        converted.weight_hh_l0_g.mul_(2)
    assert not torch.allclose(converted(input)[0], expected)


def test_subclasses_and_parametrised_layers_are_kept_with_a_reason() -> None:
    class Own(nn.LSTM):
        pass

    parametrised = nn.utils.parametrizations.weight_norm(nn.GRU(3, 4), "weight_hh_l0")
    model = nn.ModuleDict({"own": Own(3, 4), "normed": parametrised, "plain": nn.RNN(3, 4)})
    conversion = convert(model)
    assert [swap.name for swap in conversion.swaps] == ["plain"]
    assert conversion.skipped == (
        "own: Own is a subclass, which may compute something else",
        "normed: its weights are parametrised; remove the parametrisation first",
    )
    assert "own: Own is a subclass, which may compute something else (kept)" in str(conversion)
    assert str(convert(nn.Linear(2, 2))) == "no recurrent layers to convert"


@pytest.mark.parametrize("single_bias", [False, True])
def test_conversion_to_torch_is_the_reverse(single_bias: bool) -> None:
    model = nn.ModuleDict({"layer": LSTM(3, 4, 2, single_bias=single_bias), "other": LSTM(3, 4, zoneout=0.1)})
    input = torch.randn(5, 2, 3)
    expected = model["layer"](input)[0]
    conversion = convert(model, "torch")
    assert type(model["layer"]) is nn.LSTM
    torch.testing.assert_close(model["layer"](input)[0], expected)
    assert conversion.skipped == ("other: torch has no zoneout",)


def test_dynamic_quantisation_works_through_torch() -> None:
    model = nn.Sequential(
        LSTM(3, 8),
    )
    input = torch.randn(5, 2, 3)
    expected = model(input)[0]
    convert(model, "torch")
    with pytest.warns((DeprecationWarning, UserWarning), match="deprecated"):
        quantised = torch.ao.quantization.quantize_dynamic(model, {nn.LSTM})
    torch.testing.assert_close(quantised(input)[0], expected, rtol=0.05, atol=0.05)
    assert "Dynamic" in repr(quantised)


def test_mist_has_the_same_interface_and_at_most_as_many_parameters() -> None:
    torch.manual_seed(0)
    model = Tagger()
    count = sum(parameter.numel() for parameter in model.parameters())
    (swap,) = convert(model, "mist", delays=4).swaps
    assert isinstance(model.lstm, MatchedMIST)
    assert 0.9 * count < sum(parameter.numel() for parameter in model.parameters()) <= count
    assert swap.difference is None
    assert "fresh start" in str(swap)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    labels = TOKENS % 5
    losses = []
    for _ in range(60):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(TOKENS).flatten(0, 1), labels.flatten())
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.2 * losses[0]
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_mist_in_the_place_of_a_layer_carries_its_state_and_takes_packed_input() -> None:
    torch.manual_seed(0)
    layer: Any = convert(nn.LSTM(3, 8, 2), "mist", delays=3).model.eval()
    input = torch.randn(9, 2, 3)
    whole, (h, _) = layer(input)
    first, state = layer(input[:4])
    second, (h_after, _) = layer(input[4:], state)
    close(torch.cat([first, second]), whole, 1e-5)
    close(h_after, h, 1e-5)
    close(whole[-1], h[-1], 1e-5)
    packed, _ = layer(pack_padded_sequence(input, torch.tensor([9, 9])))
    assert packed.data.shape == (18, 8)
    with pytest.raises(TypeError, match=r"MatchedMIST: expected state to be the pair \(h, history\)"):
        layer(input, h)


def test_wrong_arguments_raise() -> None:
    with pytest.raises(ValueError, match="convert: expected to to be one of mistrnn, torch, mist, got 'gru'"):
        convert(nn.LSTM(3, 4), "gru")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"convert: expected model to be a torch\.nn\.Module, got str"):
        convert("model")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="convert: expected no delays, because it is an option of to='mist'"):
        convert(nn.LSTM(3, 4), delays=3)
    assert mistrnn.convert is convert
