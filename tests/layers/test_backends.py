"""The choice of a backend, and the errors where the requested one is unavailable."""

import copy
import io
import pickle
import warnings
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence

from mistrnn.kernels.cell import Cell
from mistrnn.kernels.cpu import backend as cpu
from mistrnn.kernels.cpu import library
from mistrnn.layers import LAYERS, MIST, RNN, RecurrentLayer, backends
from tests.layers.cases import (
    as_tuple,
    close,
    every_fused_layer,
    every_layer,
    needs_fused_backend,
    random_state,
    seeded,
    small,
)


@pytest.fixture
def no_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "loaded", None)
    monkeypatch.setattr(library, "problem", "mistrnn was installed without its compiled code")
    monkeypatch.setattr(backends, "_warned", set())


def test_unknown_backend_raises() -> None:
    with pytest.raises(ValueError, match="MIST: expected backend to be one of auto, reference, fused, got 'fast'"):
        MIST(1, 2).backend = "fast"  # type: ignore[assignment]


def test_form_of_version_0_1_warns_and_sets_the_backend() -> None:
    layer = MIST(1, 2)
    with pytest.warns(DeprecationWarning, match="`form` is deprecated and goes in 0.4; use `backend`"):
        layer.form = "plain"
    assert layer.backend == "reference"
    with pytest.warns(DeprecationWarning, match="`form` is deprecated"):
        assert layer.form == "plain"


@every_layer
def test_backends_agree(name: str) -> None:
    needs_fused_backend(name)
    layer, input = small(name), torch.randn(5, 2, 3, dtype=torch.float64)
    outputs = []
    for backend in ("fused", "reference", "auto"):
        layer.backend = backend  # type: ignore[assignment]
        outputs.append(layer(input)[0])
    torch.testing.assert_close(outputs[0], outputs[1], rtol=1e-12, atol=1e-12)
    assert torch.equal(outputs[0], outputs[2])


@every_fused_layer
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_computed_in_full_and_rounded_in_the_end(name: str, dtype: torch.dtype) -> None:
    with seeded(0):
        layer = LAYERS[name](3, 8, num_layers=2, dtype=dtype)
        input, weight = torch.randn(12, 2, 3).to(dtype), torch.randn(12, 2, 8).to(dtype)
    exact = copy.deepcopy(layer).double()
    expected, _ = exact(input.double())
    expected.backward(weight.double())
    errors = {}
    for backend in ("fused", "reference"):
        layer.backend = backend  # type: ignore[assignment]
        layer.zero_grad()
        output, state = layer(input)
        output.backward(weight)
        tensors = [
            (output, expected),
            *((p.grad, q.grad) for p, q in zip(layer.parameters(), exact.parameters(), strict=True)),
        ]
        assert all(found is not None and found.dtype == dtype for found, _ in tensors)
        assert all(part.dtype == dtype for part in as_tuple(state) if part.is_floating_point())
        errors[backend] = max(
            float((found.double() - right).detach().norm() / right.detach().norm()) for found, right in tensors
        )
    assert errors["fused"] < min(errors["reference"], 4 * torch.finfo(dtype).eps)
    layer.backend = "fused"
    stream, (output, state) = layer.eval().stream(2), layer(input)
    assert torch.equal(torch.stack([stream(step) for step in input]), output)
    assert all(torch.equal(a, b) for a, b in zip(as_tuple(stream.state), as_tuple(state), strict=True))


@every_fused_layer
def test_half_precision_under_vmap_compilation_and_second_derivatives(name: str) -> None:
    with seeded(0):
        layer, x = LAYERS[name](3, 8, dtype=torch.bfloat16), torch.randn(4, 2, 3).bfloat16()
    output = layer(x)[0]
    both = torch.func.vmap(lambda x: layer(x)[0])(torch.stack([x, x]))
    assert torch.equal(both[0], output)
    assert torch.equal(torch.compile(layer, fullgraph=True, backend="aot_eager")(x)[0], output)
    x.requires_grad_()
    (first,) = torch.autograd.grad(layer(x)[0].sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first.square().sum(), x)
    assert second.dtype == torch.bfloat16
    assert second.isfinite().all()
    assert second.any()


def test_a_dtype_that_is_not_served_is_named() -> None:
    assert cpu.unavailable("mist", torch.complex64) == (
        "it computes in float32, float64 and half precision, and the parameters are complex64"
    )


@pytest.mark.usefixtures("no_library")
def test_without_the_library_the_reference_runs_with_a_warning() -> None:
    layer, input = MIST(3, 8), torch.randn(5, 2, 3)
    with pytest.warns(
        UserWarning, match="reference backend, which is slower: mistrnn was installed without its compiled code"
    ):
        output, _ = layer(input)
    stream = layer.stream(2)
    torch.testing.assert_close(torch.stack([stream(x) for x in input]), output)
    layer.backend = "fused"
    with pytest.raises(RuntimeError, match="but mistrnn was installed without its compiled code"):
        layer(input)
    layer.backend = "reference"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        layer(input)


def test_layer_with_an_unregistered_cell_runs_on_the_reference_without_a_warning() -> None:
    class Own(RecurrentLayer):
        cell = Cell("own", lambda weights, dropout, lags: lambda x, past: (torch.tanh(x + past(1)),))

    layer = Own(3, 4)
    assert layer(torch.randn(5, 2, 3))[0].shape == (5, 2, 4)
    layer.backend = "fused"
    with pytest.raises(
        RuntimeError,
        match=r'Own: expected a fused backend, because backend="fused", but this cell has only the reference step',
    ):
        layer(torch.randn(5, 2, 3))


def test_fused_is_refused_on_a_device_that_it_does_not_serve() -> None:
    layer = MIST(3, 8, device="meta")
    layer.backend = "fused"
    with pytest.raises(
        RuntimeError, match="fused backends exist for CPUs and NVIDIA GPUs, and the parameters are on meta"
    ):
        layer(torch.randn(5, 2, 3, device="meta"))


# torch warns that it traces no more in the future, and of every size that a check looks at.
tracing = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::torch.jit.TracerWarning")


class Model(nn.Module):
    """A layer with lengths and resets by position, which is how torch hands on what it traces."""

    def __init__(self, layer: RecurrentLayer) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor, lengths: Tensor, reset: Tensor) -> Any:
        return self.layer(x, lengths=lengths, reset=reset)


@tracing
@every_layer
@pytest.mark.parametrize("options", [{}, {"num_layers": 2, "bidirectional": True, "layer_norm": True, "zoneout": 0.2}])
def test_traced_layer_computes_from_its_input(name: str, options: dict[str, Any]) -> None:
    with seeded(0):
        model = Model(small(name, **options).eval())
        first, second, wider = (torch.randn(6, batch, 3, dtype=torch.float64) for batch in (2, 2, 4))
        resets = torch.rand(6, 4) < 0.3
    lengths = torch.tensor([6, 3, 4, 0])
    traced = torch.jit.trace(model, (first, lengths[:2], resets[:, :2]), check_trace=False)
    for x, ends, reset in (
        (first, lengths[:2], resets[:, :2]),
        (second, lengths[2:], resets[:, 2:]),
        (wider, lengths, resets),
    ):
        output, state = traced(x, ends, reset)
        expected, expected_state = model(x, ends, reset)  # in the fused backend
        close(output, expected)
        close(state, expected_state)
    alone = torch.jit.trace(model.layer, first)  # and torch's own check, without a warning of it
    for found, right in zip(as_tuple(alone(second)[1]), as_tuple(model.layer(second)[1]), strict=True):
        close(found, right)


@tracing
def test_traced_layer_refuses_other_lengths_than_the_traced_one() -> None:
    with seeded(0):
        layer, input = small("mist").eval(), torch.randn(6, 2, 3, dtype=torch.float64)
    traced = torch.jit.trace(layer, input)
    with pytest.raises(RuntimeError, match="6"):
        traced(input[:5])


@tracing
@every_layer
def test_graph_that_onnx_gets_by_tracing_has_the_input_and_its_numbers(name: str) -> None:
    pytest.importorskip("onnx")
    from onnx import load_from_string
    from onnx.reference import ReferenceEvaluator

    class Outputs(nn.Sequential):
        def forward(self, x: Tensor) -> Tensor:
            output: Tensor = self[0](x)[0]
            return output

    with seeded(0):
        model = Outputs(small(name, dtype=torch.float32).eval())
        first, second = torch.randn(2, 6, 2, 3)
    file = io.BytesIO()
    torch.onnx.export(model, (first,), file, dynamo=False, input_names=["x"])
    graph = load_from_string(file.getvalue())
    assert [given.name for given in graph.graph.input] == ["x"]
    (found,) = ReferenceEvaluator(graph).run(None, {"x": second.numpy()})
    torch.testing.assert_close(torch.from_numpy(found), model(second).detach(), rtol=1e-5, atol=1e-5)


@tracing
@every_layer
def test_fused_is_refused_while_torch_traces(name: str) -> None:
    needs_fused_backend(name)
    with seeded(0):
        layer, input = small(name), torch.randn(5, 2, 3, dtype=torch.float64)
    layer.backend = "fused"
    with pytest.raises(
        RuntimeError, match=r'because backend="fused", but torch\.jit\.trace cannot record compiled code'
    ):
        torch.jit.trace(layer, input)
    assert layer(input)[0].isfinite().all()  # and serves again afterwards


@every_layer
def test_backend_goes_with_copies_and_pickles(name: str) -> None:
    layer = LAYERS[name](3, 8)
    layer.backend = "reference"
    assert copy.deepcopy(layer).backend == "reference"
    assert pickle.loads(pickle.dumps(layer)).backend == "reference"
    assert "backend" not in layer.state_dict()


@every_layer
def test_streams_of_both_backends_agree_and_fused_ones_are_not_copied(name: str) -> None:
    needs_fused_backend(name)
    layer = small(name, num_layers=2, zoneout=0.2, layer_norm=True).eval()
    inputs, resets = torch.randn(12, 3, 3, dtype=torch.float64), torch.rand(12, 3) < 0.2
    outputs, states = [], []
    for backend in ("fused", "reference"):
        layer.backend = backend  # type: ignore[assignment]
        stream = layer.stream(3)
        outputs.append(torch.stack([stream(x, r) for x, r in zip(inputs, resets, strict=True)]))
        states.append(stream.state if isinstance(stream.state, tuple) else (stream.state,))
        if backend == "fused":
            with pytest.raises(TypeError, match="a running stream cannot be copied or pickled"):
                copy.deepcopy(stream)
    torch.testing.assert_close(outputs[0], outputs[1], rtol=1e-12, atol=1e-12)
    for fused, plain in zip(*states, strict=True):
        torch.testing.assert_close(fused, plain, rtol=1e-12, atol=1e-12)


def test_stream_takes_weights_and_state_as_they_are_when_it_is_made() -> None:
    layer = small("mist").eval()
    layer.backend = "fused"
    state = random_state(layer, 2)
    expected = layer(torch.ones(6, 2, 3, dtype=torch.float64), state)[0]
    stream = layer.stream(2, state)
    with torch.no_grad():
        layer.weight_hh_l0.zero_()
    for part in state:
        part.zero_()
    found = torch.stack([stream(torch.ones(2, 3, dtype=torch.float64)) for _ in range(6)])
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


@every_layer
def test_stream_needs_neither_the_layer_nor_its_memory_any_more(name: str) -> None:
    def fresh() -> RecurrentLayer:
        torch.manual_seed(4)
        return small(name, hidden_size=24, layer_norm=True).eval()

    inputs = torch.randn(8, 2, 3, dtype=torch.float64)
    layer = fresh()
    expected = layer(inputs)[0]
    stream = layer.stream(2)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.fill_(7.0)
    del layer
    filler = [torch.full((24 * k,), 9.0, dtype=torch.float64) for k in range(1, 200)]  # what was freed is written over
    torch.testing.assert_close(torch.stack([stream(x) for x in inputs]), expected, rtol=1e-12, atol=1e-12)
    assert filler


def test_stream_takes_a_state_in_any_layout() -> None:
    layer = small("lstm").eval()
    h, c = (torch.randn(1, 6, 2, dtype=torch.float64).transpose(1, 2) for _ in range(2))
    inputs = torch.randn(5, 2, 3, dtype=torch.float64)
    stream = layer.stream(2, (h, c))
    output, state = layer(inputs, (h, c))
    torch.testing.assert_close(torch.stack([stream(x) for x in inputs]), output)
    torch.testing.assert_close(stream.state, state)


def test_stream_made_in_inference_mode_goes_on_outside() -> None:
    layer = small("clockwork").eval()
    inputs, reset = torch.randn(2, 2, 3, dtype=torch.float64), torch.tensor([[True, False], [False, True]])
    with torch.inference_mode():
        stream = layer.stream(2)
    found = torch.stack([stream(x, again) for x, again in zip(inputs, reset, strict=True)])
    torch.testing.assert_close(found, layer(inputs, reset=reset)[0])


def test_subclass_with_a_step_of_its_own_runs_on_the_reference() -> None:
    def step(weights: Any, dropout: Any, lags: Any) -> Any:
        once = RNN.cell.step(weights, dropout, lags)
        return lambda x, past: (2 * once(x, past)[0],)

    class Doubled(RNN):
        cell = replace(RNN.cell, step=step)

    layer = Doubled(3, 4)
    assert not layer.takes_fused(layer.weight_hh_l0)
    assert layer(torch.randn(5, 2, 3))[0].abs().max() > 1
    assert RNN(3, 4).takes_fused(layer.weight_hh_l0)


def lazily_negated(x: Tensor) -> Tensor:
    """The same numbers, which torch has yet to negate: as in the imaginary part of what was conjugated."""
    return torch._neg_view(-x)


@every_fused_layer
def test_numbers_that_torch_has_yet_to_negate_count_as_what_they_mean(name: str) -> None:
    with seeded(0):
        layer, x = small(name, input_size=1).eval(), torch.randn(6, 2, 1, dtype=torch.float64)
        state = random_state(layer, 2)
        weight = torch.randn(6, 2, 6, dtype=torch.float64)
    odd = tuple(lazily_negated(part) if part.is_floating_point() else part for part in as_tuple(state))
    output, final = layer(x, state)
    output.backward(weight)
    gradients = [parameter.grad.clone() for parameter in layer.parameters() if parameter.grad is not None]
    layer.zero_grad()
    odd_output, odd_final = layer(lazily_negated(x), odd if len(odd) > 1 else odd[0])
    odd_output.backward(lazily_negated(weight))
    close(odd_output, output)
    close(odd_final, final)
    close(tuple(parameter.grad for parameter in layer.parameters() if parameter.grad is not None), tuple(gradients))
    stream, odd_stream = layer.stream(2, state), layer.stream(2, odd if len(odd) > 1 else odd[0])
    close(odd_stream(lazily_negated(x[0])), stream(x[0]))
    close(odd_stream.state, stream.state)


@every_fused_layer
def test_zeros_that_torch_has_yet_to_fill_in_are_zeros(name: str) -> None:
    layer = small(name).eval()
    zeros = torch.zeros(5, 2, 3, dtype=torch.float64)
    close(layer(torch._efficientzerotensor((5, 2, 3), dtype=torch.float64))[0], layer(zeros)[0])
    close(layer.stream(2)(torch._efficientzerotensor((2, 3), dtype=torch.float64)), layer.stream(2)(zeros[0]))


@pytest.mark.parametrize("backend", ["fused", "reference"])
@pytest.mark.parametrize("kind", [np.float32, torch.tensor])
@every_fused_layer
def test_a_zoneout_that_is_set_later_counts_whatever_number_it_is(name: str, kind: Any, backend: Any) -> None:
    with seeded(0):
        layer, x = small(name, zoneout=0.25).eval(), torch.randn(9, 2, 3, dtype=torch.float64)
    layer.backend = backend
    expected = layer(x)[0]
    layer.zoneout = kind(0.25)
    close(layer(x)[0], expected)
    stream = layer.stream(2)
    close(torch.stack([stream(step) for step in x]), expected)


@pytest.mark.parametrize("backend", ["fused", "reference"])
@every_fused_layer
def test_a_layer_runs_where_its_parameters_are_whatever_the_default_device(name: str, backend: Any) -> None:
    with seeded(0):
        layer, x = small(name, zoneout=0.2, recurrent_dropout=0.2), torch.randn(5, 2, 3, dtype=torch.float64)
        packed = pack_padded_sequence(x, torch.tensor([3, 5]), enforce_sorted=False)
    layer.backend = backend
    with torch.device("meta"):
        output, state = layer(x, lengths=torch.tensor([3, 5], device="cpu"))
        layer(packed)[0].data.sum().backward()
        layer.eval().stream(2)(x[0])
    assert {tensor.device.type for tensor in (output, *as_tuple(state))} == {"cpu"}
    assert all(parameter.grad is not None and parameter.grad.isfinite().all() for parameter in layer.parameters())
