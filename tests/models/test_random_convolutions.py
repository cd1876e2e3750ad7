"""Random convolutions: chunks, lengths, streams and single steps count the same; draws; refusals."""

from typing import Any

import pytest
import torch
from torch import Tensor

from mistrnn.kernels.cpu import convolutions as kernels
from mistrnn.kernels.cpu import library
from mistrnn.models import Ensemble, RandomConvolutions, SequenceNetwork
from mistrnn.models.random_convolutions import FARTHEST, LEVELS, spread

CHANNELS, SCORES = 3, 4


def new(features: int = 500, steps: int = 60) -> RandomConvolutions:
    torch.manual_seed(0)
    dilations, thresholds = spread(features, steps)
    network = RandomConvolutions(CHANNELS, SCORES, dilations=dilations, thresholds=thresholds)
    network.mean, network.scale = torch.tensor([5.0, 0.0, -1.0]).double(), torch.tensor([2.0, 1.0, 0.1]).double()
    network.draw(inputs(steps, 8), None, torch.Generator().manual_seed(0))
    return network.eval()


def inputs(steps: int = 40, batch: int = 5) -> Tensor:
    x = torch.randn(steps, batch, CHANNELS, generator=torch.Generator().manual_seed(steps)).cumsum(0)
    return x * torch.tensor([2.0, 1.0, 0.1]) + torch.tensor([5.0, 0.0, -1.0])


@pytest.fixture(params=["compiled", "composed"])
def backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "composed":
        monkeypatch.setattr(kernels, "_composed", lambda *tensors: True)
        monkeypatch.setattr(library, "loaded", None)
    elif library.loaded is None:
        pytest.skip("no compiled code here")
    return str(request.param)


@torch.no_grad()
def test_chunks_with_the_state_handed_on_are_the_whole(backend: str) -> None:
    network, x = new(), inputs()
    whole, expected = network(x)
    state: Any = None
    for begin, end in ((0, 1), (1, 3), (3, 30), (30, 40)):
        scores, state = network(x[begin:end], state)
    assert torch.equal(scores, whole)
    for name, part, own, first in zip(network.state_names, state, expected, network.initial_state(5), strict=True):
        assert torch.equal(part, own), name
        assert part.shape == first.shape, name
        assert part.dtype == first.dtype, name


@torch.no_grad()
def test_padding_is_not_read(backend: str) -> None:
    network, x, lengths = new(), inputs(), torch.tensor([40, 1, 17, 39, 8])
    x = torch.where((torch.arange(40)[:, None] < lengths).unsqueeze(-1), x, torch.nan)
    scores, state = network(x, lengths=lengths)
    for b, length in enumerate(lengths.tolist()):
        alone, own = network(x[:length, b : b + 1])
        assert torch.equal(scores[b : b + 1], alone) or torch.allclose(scores[b : b + 1], alone, atol=1e-6)
        assert torch.equal(state[0][:, b], own[0][:, 0])
        assert torch.equal(state[1][b : b + 1], own[1])
        assert torch.equal(state[2][b], own[2][0])


@torch.no_grad()
def test_every_step_is_the_answer_for_the_beginning_of_a_sequence() -> None:
    network, x, lengths = new(), inputs(), torch.tensor([40, 1, 17, 39, 8])
    scores, _ = network(x, lengths=lengths, every_step=True)
    assert scores.shape == (40, 5, SCORES)
    for t in (0, 7, 39):
        wanted, _ = network(x[: t + 1], lengths=lengths.clamp_max(t + 1))
        torch.testing.assert_close(scores[t], wanted, rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_stream_is_the_network_and_resumes_from_its_state(backend: str) -> None:
    network, x = new(), inputs()
    stream = network.stream(5)
    assert (type(stream._steps).__name__ == "FusedConvolutionStream") == (backend == "compiled")
    for t in range(25):
        torch.testing.assert_close(stream(x[t]), network(x[: t + 1])[0], rtol=1e-5, atol=1e-5)
    other = network.stream(5, stream.state)
    for t in range(25, 40):
        scores = other(x[t])
    torch.testing.assert_close(scores, network(x)[0], rtol=1e-5, atol=1e-5)
    for part, own in zip(other.state, network(x)[1], strict=True):
        assert torch.equal(part, own)


@torch.no_grad()
def test_stream_starts_some_sequences_afresh(backend: str) -> None:
    network, x = new(), inputs()
    stream, reset = network.stream(5), torch.tensor([False, True, False, True, False])
    for t in range(20):
        stream(x[t])
    stream(x[20], reset)
    for t in range(21, 40):
        scores = stream(x[t])
    torch.testing.assert_close(scores[~reset], network(x)[0][~reset], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(scores[reset], network(x[20:])[0][reset], rtol=1e-5, atol=1e-5)


def test_stream_keeps_the_weights_that_it_was_made_with() -> None:
    network, x = new(), inputs()
    stream = network.stream(5)
    first = stream(x[0])
    stream = network.stream(5)
    with torch.no_grad():
        network.head.weight.add_(1.0)
        network.thresholds.add_(1e6)
    assert torch.equal(stream(x[0]), first)


def test_gradients_reach_the_head_alone() -> None:
    network = new()
    x = inputs().requires_grad_()
    network(x)[0].sum().backward()
    assert x.grad is None
    assert network.head.weight.grad is not None
    assert network.head.weight.grad.any()


def test_extreme_inputs_are_clamped() -> None:
    network = new()
    x = inputs()
    x[3], x[5] = 1e29, -1e29
    q = network.quantised(x)
    assert q.abs().max() == FARTHEST * LEVELS
    assert torch.equal(q, q.round())
    assert network(x)[0].isfinite().all()


def test_draw_follows_from_the_generator_and_takes_quantiles() -> None:
    assert torch.equal(new().thresholds, new().thresholds)
    network, x = new(steps=60), inputs(60, 8)
    other = new(steps=60)
    other.draw(x, None, torch.Generator().manual_seed(1))
    assert not torch.equal(network.channels, other.channels)
    shares = network.features(x)
    # Thresholds are quantiles: half of all steps are above them on the average, and all shares occur.
    assert shares.mean() == pytest.approx(0.5, abs=0.05)
    assert shares.min() < 0.1
    assert shares.max() > 0.9


@pytest.mark.parametrize(("features", "steps"), [(5000, 1), (5000, 2), (84, 1000), (1, 9), (10_000, 10**6)])
def test_spread_gives_about_so_many_features_and_spans_no_more_than_the_case(features: int, steps: int) -> None:
    dilations, thresholds = spread(features, steps)
    assert abs(84 * sum(thresholds) - features) <= 84
    assert 8 * max(dilations) <= max(8, min(steps, 2**14) - 1)
    assert dilations == sorted(set(dilations))


@torch.no_grad()
def test_ensemble_weighs_its_members() -> None:
    torch.manual_seed(0)
    convolutions = new()
    network = SequenceNetwork(CHANNELS, SCORES, hidden_size=8).eval()
    network.standardisation = convolutions.standardisation
    ensemble, x = Ensemble([network, convolutions], weights=[1, 3]).eval(), inputs()
    wanted = 0.25 * network(x)[0].softmax(-1) + 0.75 * convolutions(x)[0].softmax(-1)
    torch.testing.assert_close(ensemble(x)[0].exp(), wanted)
    assert ensemble.networks == [network]
    assert ensemble.parameter_count() == network.parameter_count() + convolutions.parameter_count()
    stream = ensemble.stream(5)
    for row in x:
        scores = stream(row)
    torch.testing.assert_close(scores.exp(), wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("weights", [[1.0], [1.0, 0.0], [1.0, float("nan")], [1.0, -1.0]])
def test_ensemble_refuses_other_weights(weights: list[float]) -> None:
    with pytest.raises(ValueError, match="expected 2 positive weights"):
        Ensemble([new(), new()], weights=weights)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"input_size": 0}, "input_size"),
        ({"output_size": 0}, "output_size"),
        ({"dilations": [0]}, "dilations"),
        ({"dilations": []}, "for each dilation"),
        ({"thresholds": [1, 1]}, "for each dilation"),
        ({"thresholds": [0]}, "thresholds"),
    ],
)
def test_wrong_arguments_are_refused(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises((ValueError, TypeError), match=said):
        RandomConvolutions(**{"input_size": 1, "output_size": 2, "dilations": [1], "thresholds": [1], **arguments})


def test_wrong_inputs_are_refused() -> None:
    network = new()
    with pytest.raises(ValueError, match=r"expected input \[T, B, 3\]"):
        network(torch.randn(4, 2, 2))
    with pytest.raises(ValueError, match=r"expected lengths \[2\]"):
        network(torch.randn(4, 2, 3), lengths=torch.tensor([1]))
    with pytest.raises(ValueError, match="a state of 3 tensors"):
        network(torch.randn(4, 2, 3), (torch.zeros(1),))
    with pytest.raises(ValueError, match="evaluation mode"):
        network.train().stream()
