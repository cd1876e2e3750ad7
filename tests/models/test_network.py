"""The network: shapes, lengths, states handed on, poolings, directions, dropout, statistics, errors, by every layer."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from mistrnn import MIST
from mistrnn.layers import LAYERS
from mistrnn.models import SequenceNetwork
from mistrnn.models._frames import BatchStatistics

CHANNELS, SCORES, WIDTH = 3, 4, 6
OPTIONS: dict[str, dict[str, Any]] = {
    "mist": {"delays": [1, 2, 5]},
    "narx": {"delays": [1, 3]},
    "clockwork": {"periods": [1, 2, 3]},
}
POOLINGS = ["last", "mean", "max", "mean+max", "max+last+mean", None]
every_layer = pytest.mark.parametrize("layer", list(LAYERS))


def new(layer: str = "mist", **arguments: Any) -> SequenceNetwork:
    """A network in float64 whose every tensor counts, in evaluation."""
    torch.manual_seed(0)
    own = {"hidden_size": WIDTH, "kernel_size": 4, "layer_options": OPTIONS.get(layer), "dtype": torch.float64}
    network = SequenceNetwork(CHANNELS, SCORES, layer=layer, **{**own, **arguments})
    with torch.no_grad():
        network.mean.copy_(torch.tensor([1.0, -2.0, 0.0]))
        network.scale.copy_(torch.tensor([2.0, 0.5, 3.0]))
        for name, parameter in network.named_parameters():
            if "bias" in name or "norm" in name:
                parameter.add_(0.3 * torch.randn_like(parameter))
        for norm in network.norms():
            norm.running_mean.normal_()
            norm.running_var.uniform_(0.5, 2.0)
    return network.eval()


def inputs(steps: int = 9, batch: int = 5) -> Tensor:
    torch.manual_seed(1)
    return torch.randn(steps, batch, CHANNELS, dtype=torch.float64)


def close(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)


@every_layer
@pytest.mark.parametrize("pooling", POOLINGS)
def test_scores_and_state_have_their_shapes(layer: str, pooling: str | None) -> None:
    network = new(layer, pooling=pooling, num_layers=3)
    scores, state = network(inputs())
    assert scores.shape == ((5, SCORES) if pooling else (9, 5, SCORES))
    assert network.every_step == (pooling is None)
    assert len(state) == len(network.state_names)
    assert [part.shape for part in state] == [part.shape for part in network.initial_state(5)]
    assert network(inputs(), keep_state=False)[1] == ()
    assert network(inputs(), every_step=True)[0].shape == (9, 5, SCORES)
    assert network(inputs(), every_step=False)[0].shape == (5, SCORES)


@every_layer
@pytest.mark.parametrize("pooling", POOLINGS)
@pytest.mark.parametrize("bidirectional", [False, True])
def test_each_sequence_is_computed_as_if_it_were_alone(layer: str, pooling: str | None, bidirectional: bool) -> None:
    network = new(layer, pooling=pooling, bidirectional=bidirectional)
    x, lengths = inputs(), torch.tensor([9, 4, 1, 7, 9])
    scores, state = network(x, lengths=lengths)
    for b, length in enumerate(lengths.tolist()):
        alone, own = network(x[:length, b : b + 1])
        close(scores[b] if pooling else scores[:length, b], alone[0] if pooling else alone[:, 0])
        for part, mine in zip(state, own, strict=True):
            (axis,) = [axis for axis in range(mine.dim()) if part.size(axis) != mine.size(axis)]
            close(part.narrow(axis, b, 1), mine)


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("pooling", ["mean+max", "last", None])
def test_padding_may_hold_anything(bidirectional: bool, training: bool, pooling: str | None) -> None:
    network = new(bidirectional=bidirectional, pooling=pooling, dropout=0.0).train(training)
    x, lengths = inputs(), torch.tensor([9, 4, 1, 7, 2])
    poisoned = x.masked_fill((torch.arange(9).unsqueeze(1) >= lengths).unsqueeze(-1), torch.nan)
    found = []
    for one in (x, poisoned):
        network.zero_grad()
        scores, _ = network(one, lengths=lengths)
        if pooling is None:
            scores = torch.cat([scores[:length, b] for b, length in enumerate(lengths.tolist())])
        scores.square().sum().backward()
        found.append([scores.detach(), *(parameter.grad.clone() for parameter in network.parameters())])  # type: ignore[union-attr]
    for mine, expected in zip(found[1], found[0], strict=True):
        close(mine, expected)


@every_layer
@given(data=st.data())
def test_chunks_with_the_state_handed_on_are_the_whole(layer: str, data: st.DataObject) -> None:
    pooling = data.draw(st.sampled_from(POOLINGS))
    network = new(layer, pooling=pooling, kernel_size=data.draw(st.sampled_from([1, 2, 6])))
    x = inputs(12)
    cuts = sorted(data.draw(st.sets(st.integers(1, 11), max_size=4)))
    whole, expected = network(x)
    state, pieces = None, []
    for begin, end in zip([0, *cuts], [*cuts, 12], strict=True):
        scores, state = network(x[begin:end], state)
        pieces.append(scores)
    close(pieces[-1] if pooling else torch.cat(pieces), whole)
    assert state is not None
    for part, own in zip(state, expected, strict=True):
        close(part, own)


@given(data=st.data())
def test_chunks_of_sequences_of_unequal_length_are_the_whole(data: st.DataObject) -> None:
    network, x = new(pooling="last+mean+max"), inputs(12, 3)
    first = torch.tensor([data.draw(st.integers(1, 5)) for _ in range(3)])
    second = torch.tensor([data.draw(st.integers(1, 7)) for _ in range(3)])
    _, state = network(x[:5], lengths=first)
    scores, _ = network(x[5:], state, lengths=second)
    for b in range(3):
        joined = torch.cat([x[: first[b], b : b + 1], x[5 : 5 + second[b], b : b + 1]])
        close(scores[b], network(joined)[0][0])


def test_gradients_flow_through_the_state() -> None:
    network, x = new(), inputs(8).requires_grad_()
    whole = torch.autograd.grad(network(x)[0].square().sum(), [x, *network.parameters()])
    _, state = network(x[:3])
    parts = torch.autograd.grad(network(x[3:], state)[0].square().sum(), [x, *network.parameters()])
    for found, expected in zip(parts, whole, strict=True):
        close(found, expected)


@pytest.mark.parametrize("pooling", POOLINGS)
def test_scores_at_every_step_are_those_of_the_sequence_up_to_there(pooling: str | None) -> None:
    network, x = new(pooling=pooling), inputs()
    scores, _ = network(x, every_step=True)
    for step in range(9):
        close(scores[step], network(x[: step + 1], every_step=False)[0])


@pytest.mark.parametrize("pooling", ["last", "mean", "max"])
def test_pooling_is_what_it_is_called(pooling: str) -> None:
    network, x = new(pooling=pooling), inputs()
    frames: list[Tensor] = []
    with torch.no_grad():
        hook = network.norm.register_forward_hook(lambda module, arguments, found: frames.append(found))
        scores, _ = network(x)
        hook.remove()
    by_hand = {"last": frames[0][-1], "mean": frames[0].mean(0), "max": frames[0].amax(0)}
    close(scores, network.head(by_hand[pooling]))


def test_causal_network_reads_no_future_and_one_of_both_directions_does() -> None:
    x = inputs()
    other = x.clone()
    other[6:] += 1
    for bidirectional in (False, True):
        network = new(bidirectional=bidirectional, pooling=None)
        same = torch.isclose(network(x)[0], network(other)[0]).all(-1).all(-1)
        assert same[:6].all() == (not bidirectional)
        assert not same[6:].any()


@every_layer
def test_both_directions_mirror_each_other(layer: str) -> None:
    """With a convolution of one step and weights exchanged, a reversed sequence has the reversed scores."""
    network = new(layer, bidirectional=True, kernel_size=1, pooling=None)
    expected, _ = network(inputs())
    with torch.no_grad():
        for block in network.blocks:
            parameters = dict(block.layer.named_parameters())
            for name, parameter in parameters.items():
                if name.endswith("_reverse"):
                    forward = parameters[name.removesuffix("_reverse")]
                    held = forward.clone()
                    forward.copy_(parameter), parameter.copy_(held)
            block.projection.weight.copy_(block.projection.weight.roll(WIDTH, 1))
    close(network(inputs().flip(0))[0].flip(0), expected)


def test_input_is_standardised_by_mean_and_scale() -> None:
    network, plain = new(), new()
    plain.mean.zero_(), plain.scale.fill_(1.0)
    x = inputs()
    close(network(x)[0], plain((x - network.mean) / network.scale)[0])
    large = 1e9 + x  # in float64, whatever the network computes in
    single = new(dtype=torch.float32)
    single.mean.add_(1e9)
    torch.testing.assert_close(single(large)[0], new(dtype=torch.float32)(x)[0], rtol=1e-4, atol=1e-4)


@every_layer
def test_parameters_are_counted(layer: str) -> None:
    network = new(layer)
    count = sum(parameter.numel() for parameter in network.parameters())
    severed = (
        sum(int((one.weight_hh_l0 == 0).sum()) for one in network.recurrent_layers()) if layer == "clockwork" else 0
    )
    assert network.parameter_count() == count - severed
    assert (severed > 0) == (layer == "clockwork")


def test_dropout_masks_are_drawn_once_for_all_steps() -> None:
    network = new(dropout=0.5, num_layers=2).train()
    x = inputs()
    branches = 2 * network.num_layers
    ones = [torch.ones(5, WIDTH, dtype=torch.float64)] * branches
    without = new(dropout=0.0, num_layers=2).train()
    close(network(x, dropout_masks=ones)[0], without(x)[0])
    none = [torch.zeros(5, WIDTH, dtype=torch.float64)] * branches
    found, _ = network(x, dropout_masks=none)
    embedded = network.embedding(network.standardised(x))
    variance, mean = torch.var_mean(embedded, (0, 1), correction=0)
    frames = (embedded - mean) / (variance + network.norm.epsilon).sqrt() * network.norm.weight + network.norm.bias
    close(found, network.head(torch.cat([frames.mean(0), frames.amax(0)], -1)))
    torch.manual_seed(5)
    drawn, _ = network(x)
    torch.manual_seed(5)
    masks = [(torch.rand(5, WIDTH, dtype=torch.float64) >= 0.5) * 2.0 for _ in range(branches)]
    close(drawn, network(x, dropout_masks=masks)[0])
    network.set_dropout(0.0)
    close(network(x)[0], without(x)[0])
    assert network.dropout == 0.0


def test_statistics_are_those_of_the_valid_frames() -> None:
    network = new(dropout=0.0).train()
    x, lengths = inputs(), torch.tensor([9, 4, 1, 7, 2])
    before = {name: value.clone() for name, value in network.named_buffers()}
    statistics: BatchStatistics = []
    scores, _ = network(x, lengths=lengths, statistics=statistics)
    for name, value in network.named_buffers():
        assert torch.equal(value, before[name]), "they were collected, not taken"
    assert len(statistics) == len(list(network.norms())) == 2 * network.num_layers + 1
    embedded = network.embedding(network.standardised(x))
    valid = torch.cat([embedded[:length, b] for b, length in enumerate(lengths.tolist())])
    close(statistics[0][0], valid.mean(0))
    close(statistics[0][1], valid.var(0, correction=0))
    network.update_statistics(statistics)
    taken = {name: value.clone() for name, value in network.named_buffers()}
    for (mean, _), norm in zip(statistics, network.norms(), strict=True):
        assert norm.running_mean.shape == mean.shape
    again = new(dropout=0.0).train()
    close(again(x, lengths=lengths)[0], scores)
    for name, value in again.named_buffers():
        close(value, taken[name])


def test_arguments_make_another_network_of_the_shape() -> None:
    network = new("lstm", pooling="last+max", num_layers=1, bidirectional=True, dropout=0.2, initialization="normal")
    again = SequenceNetwork(**network.arguments).double()
    again.load_state_dict(network.state_dict())
    close(again.eval()(inputs())[0], network(inputs())[0])
    assert again.arguments == network.arguments


def test_layer_may_be_a_class_and_starts_as_it_is_told() -> None:
    torch.manual_seed(3)
    open_, normal = (
        SequenceNetwork(2, 3, layer=MIST, initialization=name, hidden_size=5) for name in ("open", "normal")
    )
    assert all((layer.bias_l0 == 3).any() for layer in open_.recurrent_layers())
    assert all((layer.bias_l0 == 0).all() for layer in normal.recurrent_layers())
    normal.initialization = "open"
    normal.reset_parameters()
    assert all((layer.bias_l0 == 3).any() for layer in normal.recurrent_layers())


def test_expected_length_is_remembered_for_a_new_start() -> None:
    network = SequenceNetwork(2, 3, layer="lstm", hidden_size=64, steps=10_000)
    for _ in range(2):
        longest = max(float(layer.bias_l0[64:128].max().detach()) for layer in network.recurrent_layers())
        assert math.log(2_000) < longest < math.log(10_000)
        network.reset_parameters()


def test_fresh_network_starts_at_small_scores() -> None:
    torch.manual_seed(0)
    scores, _ = SequenceNetwork(CHANNELS, SCORES).eval()(torch.randn(50, 20, CHANNELS))
    assert scores.std() < 1
    assert torch.isfinite(scores).all()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"hidden_size": 0}, "SequenceNetwork: expected hidden_size >= 1, got 0"),
        ({"num_layers": 1.5}, "SequenceNetwork: expected num_layers to be an int, got 1.5"),
        ({"kernel_size": -1}, "SequenceNetwork: expected kernel_size >= 1, got -1"),
        ({"dropout": 1.5}, "SequenceNetwork: expected .*dropout.*, got.* 1.5"),
        ({"bidirectional": "yes"}, "SequenceNetwork: expected .*bidirectional.*, got.* 'yes'"),
        ({"pooling": "median"}, "expected pooling to be some of last, mean, max, each once .*, got 'median'"),
        ({"pooling": "mean+mean"}, r"expected pooling to be some of .*, got 'mean\+mean'"),
        ({"pooling": []}, r"expected pooling to be some of .*, got \[\]"),
        ({"layer_options": {"num_layers": 2}}, "expected layer_options without num_layers, which is the network's own"),
        ({"layer_options": {"periods": 2}}, "periods"),
        ({"layer": "lstn"}, "expected a layer among .*, got 'lstn'"),
        ({"initialization": "xavier"}, "expected an initialization among normal, uniform, groups, open, got 'xavier'"),
        ({"initialization": "groups"}, "MIST: expected no initialization 'groups', because only Clockwork has groups"),
    ],
    ids=str,
)
def test_arguments_that_cannot_be_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        SequenceNetwork(CHANNELS, SCORES, **arguments)


def test_input_that_does_not_fit_is_refused() -> None:
    network = new()
    for bad, got in ((torch.zeros(9, 5, 2), r"\[9, 5, 2\]"), (torch.zeros(9, 3), r"\[9, 3\]"), (None, "NoneType")):
        with pytest.raises(ValueError, match=rf"expected input \[T, B, 3\], because input_size=3, got {got}"):
            network(bad)
    for bad_lengths, got in ((torch.ones(4), r"\[4\]"), ([9] * 5, "list")):
        with pytest.raises(ValueError, match=rf"expected lengths \[5\], one for each sequence, got {got}"):
            network(inputs(), lengths=bad_lengths)


def test_state_that_does_not_fit_is_refused() -> None:
    state = new().initial_state(5)
    with pytest.raises(ValueError, match=r"expected a state of \d+ tensors \(block0_conv, block0_h, .*\), got 2"):
        new()(inputs(), state[:2])
    with pytest.raises(ValueError, match="expected no state, because the second direction starts at the end"):
        new(bidirectional=True)(inputs(), state)
