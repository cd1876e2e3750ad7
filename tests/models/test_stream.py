"""Networks as streams, a step at a time: equal to whole runs in every form, constant in memory, nothing shared."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from mistrnn.kernels.cpu import library
from mistrnn.kernels.cpu.library import INSTRUCTION_SETS
from mistrnn.layers import RNN
from mistrnn.models import Ensemble, SequenceNetwork
from tests.models.streams import TOLERANCE, close, composed, every_layer, fused, rows, small, whole, without_library

POOLINGS = ["last", "mean", "max", "mean+max", "max+last", "last+mean+max", None]

every_dtype = pytest.mark.parametrize("dtype", list(TOLERANCE), ids=["float32", "float64"])


@every_layer
@every_dtype
@pytest.mark.parametrize("pooling", POOLINGS)
@pytest.mark.parametrize("batch", [1, 3])
def test_stream_of_every_layer_and_pooling_equals_the_whole_run(
    layer: str, dtype: torch.dtype, pooling: str | None, batch: int
) -> None:
    network = small(layer, pooling=pooling, dtype=dtype)
    x = rows(60, batch)
    stream = fused(network.stream(batch))
    close(torch.stack([stream(row) for row in x]), whole(network, x))


@every_layer
@every_dtype
@pytest.mark.parametrize("kernel_size", [1, 2, 9])
@pytest.mark.parametrize("width", [3, 16, 33, 48])
def test_stream_of_every_width_and_kernel_equals_the_whole_run(
    layer: str, dtype: torch.dtype, kernel_size: int, width: int
) -> None:
    if layer == "clockwork":
        width = width // 3 * 3
    network = small(layer, width, kernel_size=kernel_size, num_layers=3, dtype=dtype)
    x = rows(40, 3)
    stream = fused(network.stream(3))
    close(torch.stack([stream(row) for row in x]), whole(network, x))


@every_layer
@every_dtype
@pytest.mark.parametrize("level", range(len(INSTRUCTION_SETS)), ids=INSTRUCTION_SETS)
def test_stream_on_every_instruction_set_equals_the_whole_run(
    layer: str, dtype: torch.dtype, level: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = library.loaded
    assert code is not None, library.problem
    if level > code.level:
        pytest.skip(f"this machine has no {INSTRUCTION_SETS[level]}")
    networks = [small(layer, width, pooling="last+mean+max", dtype=dtype) for width in (21, 51)]
    x = rows(40, 3)
    expected = [whole(network, x) for network in networks]
    monkeypatch.setattr(code, "level", level)
    for network, one in zip(networks, expected, strict=True):
        for batch in (3, 1):
            stream = fused(network.stream(batch))
            close(torch.stack([stream(row[:batch]) for row in x]), one[:, :batch])


@every_layer
def test_stream_on_another_instruction_set_than_it_was_made_for_goes_on(
    layer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    network, x = small(layer), rows(10)
    expected, stream = whole(network, x), fused(network.stream())
    assert library.loaded is not None
    monkeypatch.setattr(library.loaded, "level", 0)
    close(torch.stack([stream(row) for row in x]), expected)


@every_layer
@every_dtype
def test_stream_of_many_scores_and_sequences_equals_the_whole_run(layer: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    network = small(layer, dtype=dtype, num_layers=1)
    network = SequenceNetwork(**(network.arguments | {"output_size": 67, "input_size": 1}), dtype=dtype).eval()
    x = torch.randn(12, 37, 1, dtype=torch.float64)
    stream = fused(network.stream(37))
    close(torch.stack([stream(row) for row in x]), whole(network, x))


@every_dtype
@pytest.mark.parametrize("layer", ["mist", "narx"])
def test_stream_far_beyond_the_longest_delay_equals_the_whole_run(layer: str, dtype: torch.dtype) -> None:
    network = small(layer, layer_options={"delays": [1, 2, 64]}, kernel_size=31, pooling="last+mean+max", dtype=dtype)
    x = rows(1000)
    stream = fused(network.stream())
    close(torch.stack([stream(row) for row in x]), whole(network, x))


@every_layer
@every_dtype
@pytest.mark.parametrize(
    "options", [{"layer_norm": True}, {"zoneout": 0.3}, {"bias": False}, {"layer_norm": True, "zoneout": 0.1}]
)
def test_stream_of_layers_with_options_equals_the_whole_run(
    layer: str, dtype: torch.dtype, options: dict[str, Any]
) -> None:
    network = small(layer, layer_options=options, width=24, dtype=dtype)
    x = rows(30, 2)
    stream = fused(network.stream(2))
    close(torch.stack([stream(row) for row in x]), whole(network, x))


@every_layer
@every_dtype
@pytest.mark.parametrize("pooling", ["mean+max", None])
@pytest.mark.parametrize("kernel_size", [1, 4])
def test_stream_without_the_library_equals_the_whole_run(
    layer: str, dtype: torch.dtype, pooling: str | None, kernel_size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    network, x = small(layer, pooling=pooling, kernel_size=kernel_size, dtype=dtype), rows(30, 3)
    expected = whole(network, x)
    without_library(monkeypatch)
    stream = composed(network.stream(3))
    close(torch.stack([stream(row) for row in x]), expected)


def test_stream_in_half_precision_follows_the_whole_run() -> None:
    network, x = small(dtype=torch.bfloat16), rows(10)
    stream = composed(network.stream())
    found = torch.stack([stream(row) for row in x])
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found, whole(network, x), rtol=0.1, atol=0.1)


def slow_step(*arguments: Any) -> Any:
    step = RNN.cell.step(*arguments)
    return lambda *given: tuple(value / 2 for value in step(*given))


class Slow(RNN):
    """A layer with a step of its own."""

    cell = replace(RNN.cell, step=slow_step)


class Doubled(nn.Linear):
    """A linear map with a forward of its own."""

    def forward(self, input: Tensor) -> Tensor:
        return 2 * super().forward(input)


def changed(how: str) -> SequenceNetwork:
    """A network that computes something else than its modules' classes say, or not with plain weights."""
    if how == "layer with a step of its own":
        return small(Slow)
    network = small()
    block: Any = network.blocks[0]
    if how == "reference backend":
        block.layer.backend = "reference"
    elif how == "subclass of a module":
        network.head = Doubled(*reversed(network.head.weight.shape)).eval()
    elif how == "forward of its own":
        block.unit.forward = lambda x: x * 2
    elif how == "pruned":
        nn.utils.prune.random_unstructured(block.layer, "weight_hh_l0", 0.5)
    elif how == "weight norm by hooks":
        with pytest.warns(FutureWarning, match="weight_norm"):
            nn.utils.weight_norm(network.head)
    elif how == "parametrised layer":
        nn.utils.parametrizations.weight_norm(block.layer, "weight_hh_l0")
    elif how == "parametrised head":
        nn.utils.parametrizations.weight_norm(network.head)
    elif how == "forward hook":
        block.projection.register_forward_hook(lambda module, given, output: output * 2)
    elif how == "norms in float64":
        block.layer_norm.double()
        (
            block.layer.double(),
            block.conv.double(),
            block.projection.double(),
            block.unit.double(),
            block.unit_norm.double(),
        )
        network.blocks[1].double(), network.norm.double(), network.head.double()
    elif how == "statistics in float32":
        network.float()
        assert network.mean.dtype == torch.float32
    return network.eval()


CHANGES = (
    "layer with a step of its own",
    "reference backend",
    "subclass of a module",
    "forward of its own",
    "pruned",
    "weight norm by hooks",
    "parametrised layer",
    "parametrised head",
    "forward hook",
    "norms in float64",
    "statistics in float32",
)


@pytest.mark.parametrize("how", CHANGES)
def test_stream_of_a_changed_network_equals_its_whole_run(how: str) -> None:
    network, x = changed(how), rows(20, 2)
    with torch.enable_grad():
        network(x)  # hooks leave weights with a graph behind
    expected, stream = whole(network, x), composed(network.stream(2))
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.zero_()
    torch.testing.assert_close(torch.stack([stream(row) for row in x]), expected, rtol=1e-5, atol=1e-5)


def test_stream_of_a_network_without_biases_equals_the_whole_run() -> None:
    network, x = small(dtype=torch.float64), rows(20, 2)
    block: Any = network.blocks[0]
    for module in (network.embedding, network.head, block.projection, block.unit.up, block.unit.down):
        module.bias = None
    stream = fused(network.stream(2))
    close(torch.stack([stream(row) for row in x]), whole(network, x))


def test_stream_of_a_network_whose_modules_do_not_fit_fails_as_the_network_does() -> None:
    network = small()
    network.head = nn.Linear(7, 5).eval()
    stream = composed(network.stream())
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        stream(rows(1)[0])


@pytest.mark.parametrize("answer", ["classes", "numbers"])
@every_dtype
def test_stream_of_an_ensemble_equals_its_whole_run(answer: Any, dtype: torch.dtype) -> None:
    members = [
        small("mist", 21, pooling="last", dtype=dtype),
        small("lstm", 16, pooling="mean+max", kernel_size=1, num_layers=1, dtype=dtype),
        small("clockwork", 33, pooling="max", dtype=dtype),
    ]
    ensemble, x = Ensemble(members, answer).eval(), rows(40, 3)
    stream, again = ensemble.stream(3), ensemble.stream(3)
    close(torch.stack([stream(row) for row in x]), whole(ensemble, x))
    everyone = torch.ones(3, dtype=torch.bool)
    found = [again(row, everyone if t == 11 else None) for t, row in enumerate(x)]
    close(torch.stack(found[11:]), whole(ensemble, x[11:]))


def test_stream_of_an_ensemble_of_one_equals_its_member() -> None:
    network, x = small(pooling=None, dtype=torch.float64), rows(10)
    stream = Ensemble([network]).eval().stream()
    close(torch.stack([stream(row) for row in x]), whole(network, x))


@every_dtype
@pytest.mark.parametrize("given", [torch.float32, torch.float64, torch.float16, torch.int32])
def test_stream_takes_rows_of_every_real_dtype(dtype: torch.dtype, given: torch.dtype) -> None:
    network, x = small(dtype=dtype), rows(10, 2).to(given)
    stream = fused(network.stream(2))
    close(torch.stack([stream(row) for row in x]), whole(network, x))


def test_stream_takes_rows_of_any_layout() -> None:
    network, x = small(dtype=torch.float64), rows(6, 2)
    expected, stream = whole(network, x), fused(network.stream(2))
    wide = torch.stack([x, -x], -1)[..., 0]  # every other number
    close(torch.stack([stream(row) for row in wide[:2]]), expected[:2])
    close(stream(x[2].t().contiguous().t()), expected[2])
    close(stream(torch._neg_view(-x[3])), expected[3])
    close(stream(x[4].clone().requires_grad_()), expected[4])
    zeros = torch._efficientzerotensor((2, 3), dtype=torch.float64)
    close(stream(zeros), whole(network, torch.cat([x[:5], torch.zeros(1, 2, 3, dtype=torch.float64)]))[5])
