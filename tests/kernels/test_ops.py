"""The registered operators under opcheck, torch.compile, export and torch.func."""

import time
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import functional_call, grad, hessian, jacfwd, jacrev, jvp
from torch.utils._python_dispatch import TorchDispatchMode

from mistrnn.kernels.contract import INPUTS, PROBES, Settings
from mistrnn.layers import RecurrentLayer
from tests.layers.cases import as_tuple, close, every_fused_layer, random_state, small


def operator_arguments(name: str, everything: bool) -> tuple[Any, ...]:
    """Arguments of an operator with two trials; with everything: layer norm, masks, lengths, resets, backwards in time."""
    layer = small(name, hidden_size=6, layer_norm=everything)
    trials, steps, batch = 2, 5, 3
    memory = layer.memory
    tensors: dict[str, Tensor | None] = dict.fromkeys(INPUTS)

    def draw(*shape: int) -> Tensor:
        return torch.randn(trials, *shape, dtype=torch.float64, requires_grad=True)

    tensors |= {short: draw(*value.shape) for short, value in layer.cell_weights(0, 0).items()}
    tensors |= {"x": draw(steps, batch, 3), "initial_h": draw(memory, batch, 6)}
    has_c = "c" in layer.cell.state
    if has_c:
        tensors["initial_c"] = draw(memory, batch, 6)
    if everything:
        for probe in PROBES[: len(layer.cell.state)]:
            tensors[probe] = torch.zeros(trials, steps, batch, 6, dtype=torch.float64, requires_grad=True)
    if name == "clockwork":
        tensors["clock"] = torch.randint(0, 5, (trials, batch))
    if everything:
        tensors["lengths"] = torch.tensor([[5, 2, 0], [3, 5, 5]])
        tensors["reset"] = torch.rand(trials, steps, batch) < 0.2
        tensors["keep_h"] = torch.rand(trials, steps, batch, 6) < 0.3
        tensors["keep_c"] = torch.rand(trials, steps, batch, 6) < 0.3 if has_c else None
        tensors["dropout"] = torch.rand(trials, batch, 6, dtype=torch.float64)
    settings = Settings(list(layer.lags), 0.0, reverse=everything, save=True)
    return tuple(tensors[key] for key in INPUTS) + tuple(settings)


@every_fused_layer
@pytest.mark.parametrize("everything", [False, True])
def test_opcheck_passes_forwards(name: str, everything: bool) -> None:
    torch.library.opcheck(getattr(torch.ops.mistrnn, name), operator_arguments(name, everything))


@every_fused_layer
@pytest.mark.parametrize("everything", [False, True])
def test_opcheck_passes_backwards(name: str, everything: bool) -> None:
    arguments = operator_arguments(name, everything)
    with torch.no_grad():
        output, final_h, final_c, saved, layout = getattr(torch.ops.mistrnn, name)(*arguments)
    gradients = (
        torch.randn_like(output),
        torch.randn_like(final_h),
        torch.randn_like(final_c) if final_c.numel() else None,
    )
    tensors, settings = arguments[: len(INPUTS)], arguments[len(INPUTS) :]
    whole = (*gradients, *tensors, output, saved, layout, *settings, [True] * 4)
    # Second derivatives go through the reference backend; its loop over time is too much for opcheck's tracing.
    checks = ("test_schema", "test_autograd_registration", "test_faketensor")
    torch.library.opcheck(getattr(torch.ops.mistrnn, f"{name}_backward"), whole, test_utils=checks)


@every_fused_layer
def test_operators_have_their_own_vmap_rule(name: str) -> None:
    arguments = tuple(a.detach() if isinstance(a, Tensor) else a for a in operator_arguments(name, True))
    operator = getattr(torch.ops.mistrnn, name)
    more = tuple(torch.stack([a, a.flip(0)]) if isinstance(a, Tensor) else a for a in arguments)
    dims = tuple(0 if isinstance(a, Tensor) else None for a in arguments)
    found = torch.vmap(operator, in_dims=dims)(*more)
    for k in range(2):
        expected = operator(*(a[k] if isinstance(a, Tensor) else a for a in more))
        for value, wanted in zip(found, expected, strict=True):
            assert torch.equal(value[k], wanted)


@every_fused_layer
@pytest.mark.parametrize("zoneout", [0.0, 0.2])
def test_every_saved_value_is_written(name: str, zoneout: float) -> None:
    """Python says how much is saved and C++ where: in this mode torch fills new memory with NaN, and a gap would show."""
    arguments = list(operator_arguments(name, True))
    for mask in ("keep_h", "keep_c"):
        arguments[INPUTS.index(mask)] = None
    arguments[len(INPUTS) + Settings._fields.index("zoneout")] = zoneout
    torch.use_deterministic_algorithms(True)
    try:
        saved = getattr(torch.ops.mistrnn, name)(*arguments)[3]
    finally:
        torch.use_deterministic_algorithms(False)
    assert saved.size(-1) > 0
    assert saved.isfinite().all()


def graph_sizes(layer: RecurrentLayer, steps: int, backend_calls: list[int]) -> Any:
    def count(graph: torch.fx.GraphModule, _: Any) -> Any:
        backend_calls.append(len(graph.graph.nodes))
        return graph.forward

    torch._dynamo.reset()
    return torch.compile(layer, fullgraph=True, backend=count)(torch.randn(steps, 2, 3, dtype=torch.float64))


@every_fused_layer
def test_compiled_graph_does_not_grow_with_time(name: str) -> None:
    layer, sizes = small(name, num_layers=2), []
    graph_sizes(layer, 3, sizes)
    start = time.perf_counter()
    graph_sizes(layer, 10_000, sizes)
    assert time.perf_counter() - start < 20
    assert sizes[0] == sizes[1]


@every_fused_layer
def test_compiled_gradients_and_any_length_without_recompiling(name: str) -> None:
    layer = small(name, zoneout=0.2, layer_norm=True, bidirectional=True).eval()
    torch._dynamo.reset()
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager", dynamic=True)
    with torch._dynamo.config.patch(error_on_recompile=True):
        for steps in (5, 9, 40):
            input = torch.randn(steps, 2, 3, dtype=torch.float64, requires_grad=True)
            results = []
            for module in (compiled, layer):
                layer.zero_grad()
                output, state = module(input)
                (output.square().sum() + as_tuple(state)[0].sum()).backward()
                results.append((output, input.grad, *(p.grad for p in layer.parameters())))
                input.grad = None
            close(results[0], results[1], 1e-10)


@every_fused_layer
def test_exported_program_holds_one_operator_and_takes_any_length(name: str) -> None:
    layer = small(name).eval()
    steps = torch.export.Dim("steps", min=2, max=100_000)
    example = torch.randn(7, 2, 3, dtype=torch.float64)
    exported = torch.export.export(layer, (example,), dynamic_shapes=({0: steps},))
    targets = [str(node.target) for node in exported.graph.nodes if "mistrnn" in str(node.target)]
    assert targets == [f"mistrnn.{name}.default"]
    longer = torch.randn(31, 2, 3, dtype=torch.float64)
    close(exported.module()(longer)[0], layer(longer)[0])


@every_fused_layer
def test_jacobians_by_either_mode_agree(name: str) -> None:
    layer = small(name)
    state, input = random_state(layer, 2), torch.randn(3, 2, 3, dtype=torch.float64)
    parameters = {key: value.detach() for key, value in layer.named_parameters()}

    def outputs(x: Tensor) -> Tensor:
        return functional_call(layer, parameters, (x, state))[0]

    close(jacfwd(outputs)(input), jacrev(outputs)(input), 1e-10)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"weight_hh": lambda t: t[:, :8]}, r"mist: expected weight_hh \[2, 15, 6\]"),
        ({"weight_ih": lambda t: t[:, :, :2]}, r"mist: expected weight_ih \[2, 15, 3\]"),
        ({"bias": lambda t: t.float()}, r"mist: expected bias \[2, 15\] in torch.float64"),
        ({"lengths": lambda t: t + 3}, "mist: expected lengths from 0 to 5"),
        ({"lengths": lambda t: t - 1}, "mist: expected lengths from 0 to 5"),
        ({"reset": lambda t: t[:, :2]}, r"mist: expected reset \[2, 5, 3\]"),
        ({"initial_h": lambda t: t[:, :1]}, "mist: expected delays from 1 to 1"),
        ({"x": lambda t: t[0]}, r"mist: expected x \[E, T, B, I\]"),
    ],
)
def test_operators_refuse_tensors_that_do_not_fit(change: dict[str, Any], message: str) -> None:
    arguments = operator_arguments("mist", True)
    changed = [change[key](a) if key in change else a for key, a in zip(INPUTS, arguments, strict=False)]
    with pytest.raises(ValueError, match=message):
        torch.ops.mistrnn.mist(*changed, *arguments[len(INPUTS) :])


@pytest.mark.parametrize(
    ("name", "numbers"), [("mist", [0, 1, 2]), ("narx", []), ("clockwork", [1, 2, 3, 4]), ("clockwork", [0])]
)
def test_operators_refuse_delays_and_periods_that_do_not_fit(name: str, numbers: list[int]) -> None:
    arguments = list(operator_arguments(name, False))
    if name == "narx":
        arguments[INPUTS.index("weight_hh")] = torch.randn(2, 6, 0, dtype=torch.float64)
    arguments[len(INPUTS)] = numbers
    with pytest.raises(ValueError, match=f"{name}: expected (delays|periods)"):
        getattr(torch.ops.mistrnn, name)(*arguments)


def test_bad_lengths_under_vmap_are_an_error() -> None:
    layer = small("lstm")
    input = torch.randn(5, 2, 3, dtype=torch.float64)
    with pytest.raises(ValueError, match="expected lengths from 0 to 5"):
        torch.vmap(lambda n: layer(input, lengths=n)[0])(torch.tensor([[5, 4], [4_000_000, 1]]))


def test_weights_of_the_wrong_shape_are_an_error_by_functional_call() -> None:
    layer = small("rnn")
    wrong = {**dict(layer.named_parameters()), "weight_ih_l0": layer.weight_ih_l0[:, :2]}
    with pytest.raises(ValueError, match=r"rnn: expected weight_ih \[1, 6, 3\]"):
        functional_call(layer, wrong, (torch.randn(5, 2, 3, dtype=torch.float64),))


@every_fused_layer
def test_forward_over_reverse_takes_the_plain_form(name: str) -> None:
    layer = small(name)
    input, tangent = torch.randn(2, 3, 1, 3, dtype=torch.float64).unbind(0)

    def loss(x: Tensor) -> Tensor:
        return layer(x)[0].sin().sum()

    results = []
    for backend in ("fused", "reference"):
        layer.backend = backend  # type: ignore[assignment]
        over_vmap = jvp(lambda x: torch.vmap(lambda v: layer(v)[0], in_dims=1, out_dims=1)(x), (input,), (tangent,))[1]
        results.append((hessian(loss)(input), jvp(grad(loss), (input,), (tangent,))[1], over_vmap))
    close(results[0], results[1], 1e-10)


def test_tangents_go_through_compiled_code() -> None:
    layer = small("rnn")
    input, tangent = torch.randn(2, 3, 2, 3, dtype=torch.float64).unbind(0)

    def directional(x: Tensor, t: Tensor) -> Tensor:
        return jvp(lambda v: layer(v)[0], (x,), (t,))[1]

    torch._dynamo.reset()
    close(
        torch.compile(directional, fullgraph=True, backend="eager")(input, tangent), directional(input, tangent), 1e-10
    )


@every_fused_layer
def test_batched_gradients_go_through_the_operator(name: str) -> None:
    layer, x = small(name), torch.randn(3, 2, 3, dtype=torch.float64, requires_grad=True)
    output = layer(x)[0]
    directions = torch.randn(4, *output.shape, dtype=torch.float64)
    (together,) = torch.autograd.grad(output, x, directions, is_grads_batched=True, retain_graph=True)
    alone = [torch.autograd.grad(output, x, direction, retain_graph=True)[0] for direction in directions]
    torch.testing.assert_close(together, torch.stack(alone), rtol=1e-12, atol=1e-12)


class _Watch(TorchDispatchMode):
    """Remembers the names of all operators."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(str(function))
        return function(*args, **(kwargs or {}))


def test_operators_are_called_where_somebody_watches() -> None:
    layer, x = small("rnn"), torch.randn(3, 2, 3, dtype=torch.float64)
    with _Watch() as watch:
        layer(x)[0].sum().backward()
    assert [name for name in watch.names if "mistrnn" in name] == [
        "mistrnn.rnn.default",
        "mistrnn.rnn_backward.default",
    ]
    gradients = [parameter.grad for parameter in layer.parameters()]
    layer.zero_grad()
    layer(x)[0].sum().backward()
    close(gradients, [parameter.grad for parameter in layer.parameters()])


@every_fused_layer
def test_gradients_after_a_state_is_changed_in_place_are_those_of_a_copy(name: str) -> None:
    layer, x = small(name), torch.randn(3, 2, 3, dtype=torch.float64)
    found = []
    for change in (lambda part: part.mul(2), lambda part: part.mul_(2)):
        state = as_tuple(layer(x)[1])[0]
        found.append(torch.autograd.grad(change(state).sum(), layer.weight_ih_l0)[0])
    close(found[1], found[0])
