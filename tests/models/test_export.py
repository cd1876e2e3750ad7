"""Networks under torch.export and torch.compile equal eager ones, for lengths and batches that were never traced."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from mistrnn.layers import LAYERS
from mistrnn.models import Ensemble, SequenceNetwork

CHANNELS, SCORES = 2, 3
TOLERANCE = {"rtol": 1e-5, "atol": 1e-5}
SHORT = {"mist": {"delays": [1, 3, 7]}, "narx": {"delays": [2, 5]}, "clockwork": {"periods": [1, 3]}}
"""Options of each layer under which all of its past is read within few steps."""
FREE = torch.export.Dim.DYNAMIC
SIZES = ((5, 3), (1, 1), (40, 1), (17, 6))
"""[T, B] to run; the first is traced."""


@pytest.fixture(autouse=True)
def forget_compiled() -> None:
    torch.compiler.reset()  # networks of all tests share one forward, whose recompilations torch limits


def new_network(layer: str = "mist", **arguments: Any) -> SequenceNetwork:
    """Return a network whose every tensor matters."""
    torch.manual_seed(0)
    options = {"kernel_size": 4, "hidden_size": 6, "pooling": "last+mean+max", **arguments}
    network = SequenceNetwork(CHANNELS, SCORES, layer=layer, layer_options=SHORT.get(layer), **options)
    network.mean.copy_(torch.tensor([3.0, -1.0])), network.scale.copy_(torch.tensor([2.0, 0.5]))
    with torch.no_grad():
        for norm in network.norms():
            norm.weight.uniform_(0.5, 2.0), norm.bias.normal_(), norm.running_mean.normal_()
            norm.running_var.uniform_(0.5, 2.0)
        for layer_ in network.recurrent_layers():
            for name, parameter in layer_.named_parameters():
                if "bias" in name:
                    parameter.normal_(std=0.3)
    return network.eval()


def inputs(steps: int, batch: int, *, with_lengths: bool) -> tuple[Tensor, dict[str, Any]]:
    """Return the arguments of a network; padding is poison."""
    x = torch.randn(steps, batch, CHANNELS) * 2 + 1
    if not with_lengths:
        return x, {}
    lengths = torch.randint(1, steps + 1, (batch,))
    x[torch.arange(steps).unsqueeze(1) >= lengths] = torch.nan
    return x, {"lengths": lengths}


def exported(network: nn.Module, *, with_lengths: bool, **fixed: Any) -> nn.Module:
    x, given = inputs(*SIZES[0], with_lengths=with_lengths)
    axes: dict[str, Any] = {"input": {0: FREE, 1: FREE}, **dict.fromkeys(fixed)}
    if with_lengths:
        axes["lengths"] = {0: FREE}
    return torch.export.export(network, (x,), {**given, **fixed}, dynamic_shapes=axes).module()


@torch.no_grad()
def check_equal(program: Any, network: nn.Module, *, with_lengths: bool, **fixed: Any) -> None:
    for sizes in SIZES:
        x, given = inputs(*sizes, with_lengths=with_lengths)
        found, wanted = program(x, **given, **fixed), network(x, **given, **fixed)
        assert torch.isfinite(wanted[0]).all()
        torch.testing.assert_close(found, wanted, **TOLERANCE)  # the scores, and all tensors of the state


@pytest.mark.parametrize("with_lengths", [False, True], ids=["whole", "lengths"])
@pytest.mark.parametrize("layer", LAYERS)
def test_exported_network_of_every_layer_equals_eager(layer: str, with_lengths: bool) -> None:
    network = new_network(layer)
    check_equal(exported(network, with_lengths=with_lengths), network, with_lengths=with_lengths)


@pytest.mark.parametrize("with_lengths", [False, True], ids=["whole", "lengths"])
@pytest.mark.parametrize(
    "arguments",
    [
        {"pooling": None},
        {"pooling": "last"},
        {"kernel_size": 1},
        {"bidirectional": True},
        {"bidirectional": True, "pooling": None, "layer": "clockwork", "kernel_size": 5},
    ],
    ids=str,
)
def test_exported_network_of_every_shape_equals_eager(arguments: dict[str, Any], with_lengths: bool) -> None:
    network = new_network(**arguments)
    check_equal(exported(network, with_lengths=with_lengths), network, with_lengths=with_lengths)


def test_exported_network_at_every_step_equals_eager() -> None:
    network, fixed = new_network("gru"), {"every_step": True, "keep_state": False}
    check_equal(exported(network, with_lengths=False, **fixed), network, with_lengths=False, **fixed)


@pytest.mark.parametrize("with_lengths", [False, True], ids=["whole", "lengths"])
def test_exported_ensemble_of_different_members_equals_eager(with_lengths: bool) -> None:
    ensemble = Ensemble([new_network(), new_network("gru", hidden_size=4, num_layers=1, kernel_size=1, pooling="max")])
    check_equal(exported(ensemble, with_lengths=with_lengths), ensemble, with_lengths=with_lengths)


@torch.no_grad()
def test_exported_network_goes_on_from_a_state() -> None:
    network = new_network("clockwork")
    x = torch.randn(23, 4, CHANNELS)
    state = network(x[:5])[1]
    axes = tuple({part.shape.index(4): FREE} for part in state)
    program = torch.export.export(network, (x[5:9], state), dynamic_shapes=({0: FREE, 1: FREE}, axes)).module()
    for batch in (4, 1):
        _, state = network(x[:5, :batch])
        _, state = program(x[5:6, :batch], state)
        found = program(x[6:, :batch], state)
        torch.testing.assert_close(found, network(x[:, :batch]), **TOLERANCE)


def test_saved_program_runs_after_loading(tmp_path: Any) -> None:
    network = new_network("lstm")
    x, _ = inputs(5, 3, with_lengths=False)
    torch.export.save(
        torch.export.export(network, (x,), dynamic_shapes={"input": {0: FREE, 1: FREE}}), tmp_path / "network.pt2"
    )
    check_equal(torch.export.load(tmp_path / "network.pt2").module(), network, with_lengths=False)


@pytest.mark.parametrize("with_lengths", [False, True], ids=["whole", "lengths"])
@pytest.mark.parametrize("kind", ["mist", "lstm", "both directions", "ensemble"])
def test_network_compiled_into_one_graph_equals_eager(kind: str, with_lengths: bool) -> None:
    network: nn.Module
    if kind == "ensemble":
        network = Ensemble([new_network(), new_network("gru", hidden_size=4)])
    else:
        network = new_network(bidirectional=True) if kind == "both directions" else new_network(kind)
    # The tracing is at stake here; the code that inductor makes of the graph is torch's own.
    compiled = torch.compile(network, fullgraph=True, dynamic=True, backend="aot_eager")
    check_equal(compiled, network, with_lengths=with_lengths)


@pytest.mark.filterwarnings("ignore:.torch.jit.script_method. is deprecated:DeprecationWarning")  # in torch itself
def test_network_compiled_by_the_default_backend_trains_as_eager() -> None:
    network = new_network(dropout=0.0).train()
    # Inductor of torch 2.13 cannot order strides that are symbols (pytorch#185510, #172204).
    compiled = torch.compile(network, fullgraph=True, dynamic=False)
    x, lengths = torch.randn(12, 5, CHANNELS), torch.tensor([12, 3, 7, 12, 1])
    found = []
    for run in (network, compiled):
        network.zero_grad()
        network.load_state_dict(new_network().state_dict())  # the running averages as well
        scores, _ = run(x, lengths=lengths, keep_state=False)
        scores.square().sum().backward()
        averages = [norm.running_mean.clone() for norm in network.norms()]
        found.append((scores.detach(), [parameter.grad.clone() for parameter in network.parameters()], averages))
    torch.testing.assert_close(found[1], found[0], rtol=1e-4, atol=1e-4)
