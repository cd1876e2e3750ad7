"""How much of a loss's gradient arrives at earlier states: the vanishing-gradient curve of any recurrent network.

T time, B batch, H hidden; tau counts steps back from the step that the loss belongs to.
"""

import contextlib
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from mistrnn._torch_compat import tree_flatten, tree_unflatten
from mistrnn.layers import RecurrentLayer
from mistrnn.layers.conversion import TWINS
from mistrnn.layers.masks import NewProbes

STATE_SECOND: tuple[type[nn.Module], ...] = (RecurrentLayer, nn.RNNCell, nn.LSTMCell, nn.GRUCell)
"""Modules that are called with the input and the state, and begin afresh without one; torch's layers do so as their twins."""


@dataclass(frozen=True)
class GradientNorms:
    """Norms of the full derivatives of a loss with respect to the states tau steps before it, means over the batch."""

    states: dict[str, Tensor]
    """By the name of a state ("h", "c"; "l0.h" in a stack; with the module's name if there are several), [tau from 0 on]."""

    @property
    def h(self) -> Tensor:
        """The norms at the hidden state h, of the last layer if there are several."""
        return [norms for name, norms in self.states.items() if name.split(".")[-1] == "h"][-1]

    def reach(self, share: float = 0.01) -> int:
        """Return the largest tau at which h still gets this share of its largest norm."""
        return reach(self.h, share)


def reach(norms: Tensor, share: float = 0.01) -> int:
    """Return the largest tau at which the norm is at least this share of the largest; -1 if all are zero.

    >>> reach(torch.tensor([1.0, 0.5, 0.1, 0.02, 0.001]))
    3
    """
    if not 0 < share <= 1:
        raise ValueError(f"reach: expected a share above 0 and at most 1, got {share}.")
    if not len(norms) or not norms.isfinite().all():
        raise ValueError("reach: expected norms that are finite numbers, at least one of them.")
    largest = norms.max()
    enough = (norms >= share * largest).nonzero()
    return int(enough[-1]) if largest > 0 else -1


def gradient_norms(
    model: nn.Module,
    inputs: Any,
    loss: Callable[[Any], Tensor],
    *,
    at: int | Tensor | None = None,
    watch: nn.Module | Sequence[nn.Module] | None = None,
) -> GradientNorms:
    """Return ‖dl/dh(t - tau)‖ for every tau, averaged over the batch, from one backward pass.

    Our layers and torch.nn's RNN, LSTM and GRU inside the model are found by themselves; they run as one operator, without
    a graph of single steps. So are torch.nn's cells; any other module that is called once for each step, and returns its
    new hidden state (or a tuple that begins with it), is named in `watch`. A watched module runs once over the sequence,
    or piece after piece with its state handed on; a later call without a state is an error, where the module is a layer or
    a cell with the `forward` that we know. Of a bidirectional layer the first direction is watched: to the second,
    earlier steps are later ones.

    Args:
        model: the network.
        inputs: its argument; a tuple holds several arguments.
        loss: a function from the model's output to a scalar. Let it be a sum over the sequences of the batch: a mean
            divides all norms by their number.
        at: t, the step that the loss belongs to, counted from 0, or one for each sequence [B]. If left out, the last step;
            of packed sequences, the last of each.
        watch: the recurrent modules to watch, if not all that are found.

    Returns:
        The norms by state, in float64; those of the last layer's h as `.h`, and `.reach()`, the tau up to which 1% of it
        arrives.

    >>> from mistrnn import MIST
    >>> layer = MIST(1, 16)
    >>> found = gradient_norms(layer, torch.randn(100, 4, 1), lambda outputs: outputs[0][-1].sum())
    >>> found.h.shape
    torch.Size([100])
    """
    if torch.is_inference_mode_enabled():
        raise RuntimeError(
            "gradient_norms: expected to be called outside torch.inference_mode, which keeps no gradients."
        )
    watched = _modules_to_watch(model, watch)
    probes = _Probes()
    with contextlib.ExitStack() as stack:
        stack.enter_context(torch.enable_grad())
        stack.enter_context(torch.compiler.set_stance("force_eager"))  # compiled code would not see that it is watched
        for name, module in watched.items():
            stack.enter_context(_watching(module, name, f"{name}." if len(watched) > 1 else "", probes))
        value = loss(model(*inputs) if type(inputs) is tuple else model(inputs))
        found = _derivatives(value, probes, list(watched))
    norms: dict[str, Tensor] = {}  # [T, B] each
    for name, pieces in found.items():
        sizes = {piece.size(1) for piece in pieces}
        if len(sizes) > 1:
            raise ValueError(
                f"gradient_norms: expected {name} to run piece after piece of the same sequences, got batches of "
                f"{', '.join(map(str, sorted(sizes)))}."
            )
        # In float64, because squares of float32's small numbers are zero long before the numbers are.
        norms[name] = torch.cat([torch.linalg.vector_norm(piece, dim=-1, dtype=torch.float64) for piece in pieces])
    if probes.afresh:
        raise ValueError(
            f"gradient_norms: expected {probes.afresh} to run once over the sequence, or piece after piece with its state "
            "handed on, got a later call without a state."
        )
    first = inputs[0] if type(inputs) is tuple and inputs else inputs
    own_ends = _last_steps(first) if at is None and isinstance(first, PackedSequence) else None

    def ends_of(value: Tensor) -> int | Tensor | None:
        """Of packed sequences each has its own, unless the model makes other sequences of them."""
        as_packed = own_ends is not None and value.shape == (int(own_ends.max()) + 1, len(own_ends))
        return own_ends if as_packed else at

    return GradientNorms({name: by_tau(value, ends_of(value)) for name, value in norms.items()})


def _last_steps(packed: PackedSequence) -> Tensor:  # [B]
    """Return the last step of each sequence, in the order in which they were packed."""
    sizes = packed.batch_sizes
    lengths = (sizes.unsqueeze(1) > torch.arange(int(sizes[0]))).sum(0)  # longest first
    return (lengths if packed.unsorted_indices is None else lengths[packed.unsorted_indices.cpu()]) - 1


class _Probes:
    """The zeros added to the states of all watched modules, by state, in order of time."""

    def __init__(self) -> None:
        self.by_state: dict[str, list[Tensor]] = {}
        self.recording = True
        """Not in the backward pass, where activation checkpointing runs modules again."""
        self.afresh = ""
        """The name of a module that was called a second time without a state: that is no later piece of the sequence."""

    def add(self, state: str, probe: Tensor) -> Tensor:
        if self.recording:
            self.by_state.setdefault(state, []).append(probe)
        return probe


def _derivatives(value: Any, probes: _Probes, watched: list[str]) -> dict[str, list[Tensor]]:
    """Return the derivatives of the loss with respect to all probes."""
    if not isinstance(value, Tensor) or value.dim() != 0:
        got = f"shape {list(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
        raise ValueError(f"gradient_norms: expected the loss to be a scalar Tensor, got {got}.")
    if not probes.by_state:
        raise ValueError(f"gradient_norms: expected the model to run {', '.join(watched)}, but it did not.")
    every = [probe for pieces in probes.by_state.values() for probe in pieces]
    probes.recording = False
    gradients = torch.autograd.grad(value, every, allow_unused=True) if value.requires_grad else [None] * len(every)
    if all(gradient is None for gradient in gradients):
        raise ValueError(
            "gradient_norms: expected a loss that depends on the states, but it does not (or reentrant activation "
            "checkpointing hides them: use_reentrant=False)."
        )
    found = iter([torch.zeros_like(p) if g is None else g for p, g in zip(every, gradients, strict=True)])
    return {state: [next(found) for _ in pieces] for state, pieces in probes.by_state.items()}


def by_tau(norms: Tensor, at: int | Tensor | None) -> Tensor:  # [T, B] -> [tau]
    """Return the mean over the batch by the distance from step `at`; of the sequences that reach back so far."""
    steps, batch = norms.shape
    if not steps or not batch:
        raise ValueError(f"gradient_norms: expected at least one step of one sequence, got {steps} of {batch}.")
    ends = torch.as_tensor(steps - 1 if at is None else at, device=norms.device)
    if ends.is_floating_point() or ends.shape not in ((), (batch,)) or not bool(((ends >= 0) & (ends < steps)).all()):
        raise ValueError(
            f"gradient_norms: expected `at` to be a step from 0 to {steps - 1}, or one for each of {batch} sequences, got {at}."
        )
    ends = ends.long().expand(batch)
    taus = torch.arange(int(ends.max()) + 1, device=norms.device).unsqueeze(1)  # [tau, 1]
    there = taus <= ends
    back = norms.gather(0, (ends - taus).clamp_min(0))
    return torch.where(there, back, 0.0).sum(1) / there.sum(1)


def _modules_to_watch(model: nn.Module, watch: nn.Module | Sequence[nn.Module] | None) -> dict[str, nn.Module]:
    names = {module: name or "model" for name, module in model.named_modules()}
    if watch is not None:
        wanted = [watch] if isinstance(watch, nn.Module) else list(watch)
        if not wanted:
            raise ValueError("gradient_norms: expected at least one module to watch, got an empty list.")
        for module in wanted:
            if module not in names:
                raise ValueError(
                    f"gradient_norms: expected to watch a part of the model, got another {type(module).__name__}."
                )
        return {names[module]: module for module in wanted}
    known: tuple[type[nn.Module], ...] = (RecurrentLayer, *TWINS, nn.RNNCellBase)
    found = {name: module for module, name in names.items() if isinstance(module, known)}
    if not found:
        raise ValueError(
            f"gradient_norms: expected hidden states to watch, and {type(model).__name__} holds no layer of mistrnn and no "
            "recurrent layer of torch.nn; name the module that is called for each step: watch=model.cell."
        )
    return found


@contextlib.contextmanager
def _watching(module: nn.Module, name: str, prefix: str, probes: _Probes) -> Iterator[None]:
    """Add zeros to the states of a module while it runs, collect them, and note whether it starts without a state."""
    if isinstance(module, nn.RNNBase) and not isinstance(module, RecurrentLayer):
        with _twin_instead(module, name, prefix, probes):
            yield
        return
    known = next((kind.forward for kind in STATE_SECOND if isinstance(module, kind)), None)
    with contextlib.ExitStack() as stack:
        if type(module).forward is known and "forward" not in vars(module):
            stack.enter_context(_forward_instead(module, _noting(module.forward, name, probes)))
        if isinstance(module, RecurrentLayer):
            stack.enter_context(module.probed(_new_probes(module, prefix, probes)))
        else:
            hook = module.register_forward_hook(lambda *call: _probed_cell(call[-1], module, prefix, probes))
            stack.callback(hook.remove)
        yield


def _noting(forward: Callable[..., Any], name: str, probes: _Probes) -> Callable[..., Any]:
    """Return a forward that notes when it is called again without a state."""
    begun = False

    def noting(*given: Any, **options: Any) -> Any:
        nonlocal begun
        state = given[1] if len(given) > 1 else options.get("state", options.get("hx"))
        if probes.recording and begun and state is None:
            probes.afresh = probes.afresh or name
        begun = True
        return forward(*given, **options)

    return noting


@contextlib.contextmanager
def _forward_instead(module: nn.Module, forward: Callable[..., Any]) -> Iterator[None]:
    """Let a module run another forward than its class's."""
    module.forward = forward
    try:
        yield
    finally:
        del module.forward


@contextlib.contextmanager
def _twin_instead(module: nn.RNNBase, name: str, prefix: str, probes: _Probes) -> Iterator[None]:
    """Run our layer of the same equations in place of torch's, whose states cannot be probed."""
    theirs: type[nn.RNNBase] | None = next((kind for kind in TWINS if isinstance(module, kind)), None)
    if theirs is None or type(module).forward is not theirs.forward or "forward" in vars(module):
        raise ValueError(
            f"gradient_norms: expected torch.nn.RNN, LSTM or GRU as they are, got {type(module).__name__} with its own "
            "forward."
        )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about dropout that has no effect: torch has said so
        twin = TWINS[theirs].from_torch(module)
    forward = _noting(lambda input, hx=None: twin(input, hx), name, probes)
    with twin.probed(_new_probes(twin, prefix, probes)), _forward_instead(module, forward):
        yield


def _new_probes(layer: RecurrentLayer, prefix: str, probes: _Probes) -> NewProbes:
    many = layer.num_layers > 1

    def new(index: int, steps: int, batch: int) -> tuple[Tensor, ...]:
        number, direction = divmod(index, layer.directions)
        if direction:
            return ()
        like = next(layer.parameters())
        place = f"l{number}." if many else ""
        return tuple(
            # One zero serves, because it is not read.
            probes.add(
                prefix + place + component,
                torch.zeros((), dtype=like.dtype, device=like.device)
                .expand(steps, batch, layer.hidden_size)
                .requires_grad_(),
            )
            for component in layer.cell.state
        )

    return new


def _probed_cell(output: Any, module: nn.Module, prefix: str, probes: _Probes) -> Any:
    """Return a cell's output with zeros added to its state, whatever the position of the state."""
    leaves, structure = tree_flatten(output)
    names = ("h", "c") if isinstance(module, nn.LSTMCell) else ("h",)
    if not leaves or not isinstance(leaves[0], Tensor) or leaves[0].dim() not in (1, 2):
        got = f"{list(leaves[0].shape)}" if leaves and isinstance(leaves[0], Tensor) else type(output).__name__
        raise ValueError(
            f"gradient_norms: expected {type(module).__name__} to return its new hidden state [B, H], or a tuple that begins "
            f"with it, got {got}."
        )
    changed = list(leaves)
    for name, state in zip(names, leaves, strict=False):
        rows = state if state.dim() == 2 else state.unsqueeze(0)
        probe = probes.add(prefix + name, torch.zeros_like(rows).unsqueeze(0).requires_grad_())  # [1, B, H]
        moved = state + probe.view(state.shape)
        changed = [moved if leaf is state else now for leaf, now in zip(leaves, changed, strict=True)]
    return tree_unflatten(changed, structure)
