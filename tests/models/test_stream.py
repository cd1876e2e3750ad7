"""Networks as streams, a step at a time: equal to whole runs in every form, constant in memory, nothing shared."""

import copy
import gc
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from mistrnn.kernels import _library
from mistrnn.kernels._library import INSTRUCTION_SETS
from mistrnn.layers import LAYERS, RNN, RecurrentLayer
from mistrnn.models import Ensemble, SequenceNetwork
from mistrnn.models._stream import NetworkStream, _ComposedSteps, _FusedSteps

TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-12}
POOLINGS = ["last", "mean", "max", "mean+max", "max+last", "last+mean+max", None]

every_layer = pytest.mark.parametrize("layer", list(LAYERS))
every_dtype = pytest.mark.parametrize("dtype", list(TOLERANCE), ids=["float32", "float64"])


def small(layer: str | type[RecurrentLayer] = "mist", width: int = 21, **options: Any) -> SequenceNetwork:
    """A network whose parameters, statistics and standardisation all count."""
    torch.manual_seed(0)
    own = {"mist": {"delays": [1, 3, 7]}, "narx": {"delays": [1, 3, 7]}, "clockwork": {"periods": [1, 2, 3]}}
    arguments: dict[str, Any] = {"kernel_size": 4, "layer_options": own.get(layer) if isinstance(layer, str) else None}
    network = SequenceNetwork(3, 5, layer=layer, hidden_size=width, **(arguments | options)).eval()
    with torch.no_grad():
        network.mean.copy_(torch.tensor([0.5, -2.0, 100.0]))
        network.scale.copy_(torch.tensor([2.0, 0.5, 30.0]))
        for name, parameter in network.named_parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn_like(parameter) / 4)
            if "weight_hh" in name:  # rounding must not grow from step to step
                parameter.mul_(0.5 / (parameter.square().mean() * parameter.size(1)).sqrt())
        for norm in network.norms():
            norm.running_mean.normal_(0.0, 0.3)
            norm.running_var.uniform_(0.5, 2.0)
    return network


def rows(steps: int, batch: int = 1, dtype: torch.dtype = torch.float64) -> Tensor:
    torch.manual_seed(1)
    return (torch.randn(steps, batch, 3, dtype=torch.float64) * torch.tensor([2.0, 0.5, 30.0])).to(dtype)


def whole(network: SequenceNetwork | Ensemble, x: Tensor) -> Tensor:
    with torch.no_grad():
        scores: Tensor = network(x, every_step=True)[0]
    return scores


def close(found: Tensor, expected: Tensor) -> None:
    assert found.dtype == expected.dtype
    tolerance = TOLERANCE[expected.dtype]
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)


def fused(stream: Any) -> Any:
    assert isinstance(stream, NetworkStream)
    assert isinstance(stream._steps, _FusedSteps)
    return stream


def composed(stream: Any) -> Any:
    assert isinstance(stream, NetworkStream)
    assert isinstance(stream._steps, _ComposedSteps)
    return stream


def without_library(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(_library, "library", None)
    patch.setattr(_library, "problem", "there is no compiled code in this test")
    patch.setattr(RecurrentLayer, "_form", "plain")


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
    library = _library.library
    assert library is not None, _library.problem
    if level > library.level:
        pytest.skip(f"this machine has no {INSTRUCTION_SETS[level]}")
    networks = [small(layer, width, pooling="last+mean+max", dtype=dtype) for width in (21, 51)]
    x = rows(40, 3)
    expected = [whole(network, x) for network in networks]
    monkeypatch.setattr(library, "level", level)
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
    assert _library.library is not None
    monkeypatch.setattr(_library.library, "level", 0)
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
@pytest.mark.parametrize("pooling", ["last+mean+max", None])
@pytest.mark.parametrize("form", ["fused", "composed"])
def test_reset_of_some_sequences_lets_them_start_afresh(
    layer: str, pooling: str | None, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    network, x = small(layer, pooling=pooling, dtype=torch.float64), rows(40, 3)
    begins = {1: [0, 13, 14], 2: [0, 25]}  # sequence: where it begins
    expected = whole(network, x)
    for b, starts in begins.items():
        for start in starts:
            expected[start:, b] = whole(network, x[start:, b : b + 1])[:, 0]
    if form == "composed":
        without_library(monkeypatch)
    stream = fused(network.stream(3)) if form == "fused" else composed(network.stream(3))
    found = []
    for t, row in enumerate(x):
        reset = torch.tensor([False, *(t in begins[b] and t > 0 for b in (1, 2))])
        found.append(stream(row, reset if t % 2 or reset.any() else None))
    close(torch.stack(found), expected)


@pytest.mark.parametrize("form", ["fused", "composed"])
def test_reset_after_nan_leaves_nothing_of_it(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    network, x = small(pooling="last+mean+max", dtype=torch.float64), rows(12, 2)
    expected = whole(network, x)
    if form == "composed":
        without_library(monkeypatch)
    stream = network.stream(2)
    assert stream(torch.full((2, 3), torch.nan)).isnan().all()
    assert stream(x[0]).isnan().all()
    found = [stream(row, torch.ones(2, dtype=torch.bool) if t == 0 else None) for t, row in enumerate(x)]
    close(torch.stack(found), expected)


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


class Slow(RNN):
    """A layer with a step of its own."""

    def _step(self, *arguments: Any) -> Any:
        step = super()._step(*arguments)
        return lambda *given: tuple(value / 2 for value in step(*given))


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
    if how == "plain form":
        block.layer.form = "plain"
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
    "plain form",
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


@every_layer
@pytest.mark.parametrize("pooling", ["last+mean+max", None])
@pytest.mark.parametrize("form", ["fused", "composed"])
def test_stream_goes_on_from_a_whole_run_and_back(
    layer: str, pooling: str | None, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    network, x = small(layer, pooling=pooling, dtype=torch.float64), rows(40, 2)
    if form == "composed":
        without_library(monkeypatch)
    expected = whole(network, x)
    with torch.no_grad():
        _, before = network(x[:17])
        stream = network.stream(2, before)
        close(torch.stack([stream(row) for row in x[17:29]]), expected[17:29])
        state = stream.state
        scores, _ = network(x[29:], state)
        _, at_once = network(x[:29])
    close(scores if pooling else scores[-1], expected[-1])
    assert len(state) == len(network.state_names)
    for one, other in zip(state, at_once, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


def test_stream_of_an_ensemble_goes_on_from_its_state() -> None:
    ensemble = Ensemble([small(dtype=torch.float64), small("lstm", 16, kernel_size=1, dtype=torch.float64)]).eval()
    x, first = rows(20, 2), ensemble.stream(2)
    for row in x[:9]:
        first(row)
    second = ensemble.stream(2, first.state)
    close(torch.stack([second(row) for row in x[9:]]), whole(ensemble, x)[9:])


@pytest.mark.parametrize("form", ["fused", "composed"])
def test_stream_shares_no_memory_with_anything(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    network, x = small(dtype=torch.float64), rows(12, 2)
    if form == "composed":
        without_library(monkeypatch)
    expected = whole(network, x)
    with torch.no_grad():
        _, state = network(x[:3])
    stream = network.stream(2, state)
    with torch.no_grad():
        for tensor in (*state, *network.parameters(), *network.buffers()):
            tensor.zero_()
    for t, row in enumerate(x[3:], start=3):
        scores = stream(row)
        close(scores, expected[t])
        for tensor in (scores, row, *stream.state):
            tensor.zero_()


@pytest.mark.parametrize("form", ["fused", "composed"])
def test_stream_holds_the_same_memory_after_any_number_of_steps(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if form == "composed":
        without_library(monkeypatch)
    stream, row = small("mist").stream(2), rows(1, 2)[0]

    def alive_after(steps: int) -> tuple[int, list[torch.Size]]:
        for step in range(steps):
            stream(row, torch.tensor([step % 7 == 0, False]))
        gc.collect()
        return sum(type(thing) is Tensor for thing in gc.get_objects()), [tensor.shape for tensor in stream.state]

    assert alive_after(10) == alive_after(100)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, torch.enable_grad])
def test_stream_outlives_the_mode_in_which_it_was_made(mode: Any) -> None:
    network, x = small(dtype=torch.float64), rows(10, 2)
    with mode():
        stream = network.stream(2)
        found = [stream(row) for row in x[:5]]
    found += [stream(row, torch.tensor([False, False])) for row in x[5:]]
    assert not any(scores.requires_grad for scores in found)
    close(torch.stack(found), whole(network, x))


def test_streams_of_one_network_run_apart() -> None:
    network, x = small(dtype=torch.float64), rows(10, 2)
    one, two = network.stream(), network.stream()
    found = [torch.cat([one(row[:1]), two(row[1:])]) for row in x]
    close(torch.stack(found), whole(network, x))


@pytest.mark.parametrize("form", ["fused", "composed"])
def test_stream_cannot_be_copied_or_pickled(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if form == "composed":
        without_library(monkeypatch)
    network = small()
    for stream in (network.stream(), Ensemble([network]).eval().stream()):
        for duplicate in (copy.copy, copy.deepcopy, pickle.dumps):
            with pytest.raises(
                TypeError, match="a running stream cannot be copied or pickled; make another one from its state"
            ):
                duplicate(stream)  # type: ignore[operator]
    if form == "fused":
        with pytest.raises(TypeError, match="a running stream cannot be copied or pickled"):
            copy.copy(network.stream()._steps._stream)  # type: ignore[union-attr]


def test_stream_of_both_directions_is_refused() -> None:
    network = small(bidirectional=True)
    with pytest.raises(
        ValueError, match="SequenceNetwork: expected bidirectional=False for a stream, because the future"
    ):
        network.stream()
    with pytest.raises(ValueError, match="expected bidirectional=False for a stream"):
        Ensemble([network]).eval().stream()


def test_stream_in_training_is_refused() -> None:
    network = small()
    network.norm.train()
    with pytest.raises(
        ValueError, match=r"SequenceNetwork: expected evaluation mode for a stream.*call network\.eval\(\)"
    ):
        network.stream()


def test_stream_of_no_sequences_is_refused() -> None:
    with pytest.raises(ValueError, match="SequenceNetwork: expected batch_size"):
        small().stream(0)


def test_input_that_does_not_fit_is_refused() -> None:
    stream = small().stream(2)
    with pytest.raises(
        ValueError, match=r"SequenceNetwork\.stream: expected input \[2, 3\], one step of 2 sequences.*got \[2, 4\]"
    ):
        stream(torch.zeros(2, 4))
    with pytest.raises(ValueError, match=r"expected input \[2, 3\].*got list"):
        stream([[0.0] * 3] * 2)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"expected input of real numbers, got torch\.complex64"):
        stream(torch.zeros(2, 3, dtype=torch.complex64))
    with pytest.raises(ValueError, match="expected input on cpu, because the parameters are there, got meta"):
        stream(torch.zeros(2, 3, device="meta"))


def test_reset_that_does_not_fit_is_refused() -> None:
    stream, row = small().stream(2), rows(1, 2)[0]
    with pytest.raises(TypeError, match=r"SequenceNetwork\.stream: expected reset to be a bool Tensor \[B\]"):
        stream(row, torch.zeros(2))
    with pytest.raises(ValueError, match=r"expected reset \[B\] = \[2\] as the input, got \[3\]"):
        stream(row, torch.zeros(3, dtype=torch.bool))


def test_state_that_does_not_fit_is_refused() -> None:
    network = small()
    state = network.initial_state(2)
    with pytest.raises(
        ValueError, match=r"SequenceNetwork\.stream: expected a state of 7 tensors \(block0_conv, .*got 6"
    ):
        network.stream(2, state[:-1])
    with pytest.raises(ValueError, match=r"expected a state of 7 tensors \(.*got Tensor"):
        network.stream(2, state[0])  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"expected state's block0_conv \[3, 1, 21\].*got \[3, 2, 21\]"):
        network.stream(1, state)
    with pytest.raises(TypeError, match=r"expected state's count of torch\.int64, got torch\.float32"):
        network.stream(2, (*state[:-3], state[-3].float(), *state[-2:]))
    with pytest.raises(ValueError, match=r"Ensemble\.stream: expected a state of 14 tensors, got 7"):
        Ensemble([network, network]).eval().stream(2, state)


def test_stream_of_the_fused_form_where_it_cannot_serve_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    network = small()
    for layer in network.recurrent_layers():
        layer.form = "fused"
    fused(network.stream())
    without_library(monkeypatch)
    with pytest.raises(RuntimeError, match=r"MIST: expected the fused form to serve.*no compiled code in this test"):
        network.stream()


def test_structs_of_the_library_are_compared_at_load(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("Network", "NetworkBlock"):
        with monkeypatch.context() as patch:
            mirror = getattr(_library, name)
            patch.setattr(_library, name, type(name, (mirror,), {"_fields_": [("more", _library._INT)]}))
            with pytest.raises(OSError, match="of another version of mistrnn"):
                _library.Library(_library.PATH)
