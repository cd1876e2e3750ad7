"""Standardisation of inputs, with the arcsinh transform of channels with heavy tails."""

import numpy as np
import pytest
import torch
from torch import Tensor

from mistrnn.models import Arcsinh, Ensemble, RandomConvolutions, SequenceNetwork, Standardisation
from mistrnn.models._stream import NetworkStream, _ComposedSteps

CHANNELS = 3


def standardisation() -> Standardisation:
    arcsinh = Arcsinh(CHANNELS)
    arcsinh.center, arcsinh.knee = torch.tensor([0.0, 7.0, -3.0]).double(), torch.tensor([2.0, 0.0, 0.5]).double()
    return Standardisation(torch.tensor([1.0, 2.0, 0.5]).double(), torch.tensor([2.0, 0.5, 3.0]).double(), arcsinh)


def expected(x: Tensor) -> np.ndarray:
    values = x.double().numpy()
    values = np.stack([np.arcsinh(values[..., 0] / 2), values[..., 1], np.arcsinh((values[..., 2] + 3) / 0.5)], -1)
    return (values - [1.0, 2.0, 0.5]) / [2.0, 0.5, 3.0]


def inputs(steps: int = 20, batch: int = 2) -> Tensor:
    """Values with heavy tails in all channels."""
    torch.manual_seed(0)
    return torch.randn(steps, batch, CHANNELS) * torch.randn(steps, batch, CHANNELS).mul(3).exp()


def test_transform_is_arcsinh_where_there_is_a_knee() -> None:
    for x in (
        inputs(),
        torch.zeros(1, 1, CHANNELS),
        torch.full((1, 1, CHANNELS), -1e20),
        torch.full((CHANNELS,), 1e-9),
    ):
        np.testing.assert_allclose(standardisation()(x).numpy(), expected(x), rtol=1e-12, atol=1e-15)
        np.testing.assert_allclose(standardisation().of_array(x.numpy()), expected(x), rtol=1e-12, atol=1e-15)


def test_array_may_be_read_only_reversed_or_in_float32() -> None:
    values = inputs().numpy()[::-1]
    values.flags.writeable = False
    np.testing.assert_allclose(
        standardisation().of_array(values), expected(torch.from_numpy(values.copy())), rtol=1e-12
    )


def test_copy_shares_no_memory() -> None:
    given = standardisation()
    copy = given.to("cpu")
    assert given.arcsinh is not None
    given.mean.fill_(9.0), given.arcsinh.knee.fill_(9.0)
    x = inputs()
    np.testing.assert_allclose(copy(x).numpy(), expected(x), rtol=1e-12, atol=1e-15)


def network(kind: str) -> SequenceNetwork | RandomConvolutions | Ensemble:
    torch.manual_seed(1)
    if kind == "ensemble":
        return Ensemble([network("blocks"), network("convolutions")])  # type: ignore[list-item]
    made: SequenceNetwork | RandomConvolutions
    if kind == "blocks":
        made = SequenceNetwork(CHANNELS, 4, hidden_size=8, kernel_size=3, arcsinh=True)
    else:
        made = RandomConvolutions(CHANNELS, 4, dilations=[1], thresholds=[2], arcsinh=True)
    made.standardisation = standardisation()
    if isinstance(made, RandomConvolutions):
        made.draw(inputs(30, 4), None, torch.Generator().manual_seed(0))
        torch.nn.init.normal_(made.head.weight)
    return made.eval()


every_kind = pytest.mark.parametrize("kind", ["blocks", "convolutions", "ensemble"])


@every_kind
@torch.no_grad()
def test_network_transforms_its_input(kind: str) -> None:
    transformed, plain = network(kind), network(kind)
    for member in plain.members if isinstance(plain, Ensemble) else [plain]:
        member.standardisation = Standardisation(torch.zeros(CHANNELS).double(), torch.ones(CHANNELS).double())
    x = inputs()
    torch.testing.assert_close(transformed(x)[0], plain(torch.from_numpy(expected(x)))[0])


@every_kind
@torch.no_grad()
def test_stream_transforms_its_rows(kind: str) -> None:
    whole, x = network(kind), inputs()
    stream = whole.stream(2)
    for member in getattr(stream, "_members", [stream]):
        assert isinstance(member, NetworkStream)
        assert not isinstance(member._steps, _ComposedSteps)
    found = torch.stack([stream(row) for row in x])
    torch.testing.assert_close(found, whole(x, every_step=True)[0], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(stream.state, whole(x)[1], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", ["blocks", "convolutions"])
@torch.no_grad()
def test_network_is_made_again_from_its_arguments_and_its_state(kind: str) -> None:
    made = network(kind)
    assert made.arguments["arcsinh"]  # type: ignore[union-attr]
    again = type(made)(**made.arguments).eval()  # type: ignore[union-attr]
    again.load_state_dict(made.state_dict())
    x = inputs()
    assert torch.equal(again(x)[0], made(x)[0])
    plain = {
        "blocks": SequenceNetwork(CHANNELS, 4),
        "convolutions": RandomConvolutions(2, 2, dilations=[1], thresholds=[1]),
    }
    assert not any("arcsinh" in name for name in plain[kind].state_dict())


@torch.no_grad()
def test_standardised_input_is_taken_as_it_is() -> None:
    made, x = network("blocks"), inputs()
    found = made(torch.from_numpy(expected(x)).float(), standardised=True)[0]
    torch.testing.assert_close(found, made(x)[0])


@every_kind
@torch.no_grad()
def test_exported_program_transforms_its_input(kind: str) -> None:
    made = network(kind)
    program = torch.export.export(made, (inputs(),), dynamic_shapes={"input": {0: torch.export.Dim.AUTO}}).module()
    x = inputs(35)
    torch.testing.assert_close(program(x)[0], made(x)[0])
