"""How much of a loss's gradient arrives at earlier states: the vanishing-gradient curve of any recurrent network.

T time, B batch, H hidden; tau counts steps back from the step that the loss belongs to.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from mistrnn.layers import GRU, LSTM, RNN, RecurrentLayer

TWINS = {nn.RNN: RNN, nn.LSTM: LSTM, nn.GRU: GRU}
"""Our layer with the same equations, which says what arrives at its states."""


@dataclass(frozen=True)
class GradientNorms:
    """Norms of the full derivatives of a loss with respect to the states tau steps before it, means over the batch."""

    states: dict[str, Tensor]
    """By the name of a state ("h", "c"; "l0.h", "l0_reverse.h" in a stack), [tau from 0 on]."""

    @property
    def h(self) -> Tensor:
        """The norms at the hidden state h, of the last layer if there are several."""
        own = [name for name in self.states if name.split(".")[-1] == "h" and "reverse" not in name]
        return self.states[own[-1]]

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
    new hidden state (or a tuple that begins with it), is named in `watch`.

    Args:
        model: the network.
        inputs: what it is called with; a tuple holds several arguments.
        loss: from what the model returns to the loss, a scalar. Let it be a sum over the sequences of the batch: a mean
            divides all norms by their number.
        at: t, the step that the loss belongs to, counted from 0, or one for each sequence [B]; the last step if left out.
        watch: the recurrent modules to watch, if not all that are found.

    Returns:
        The norms by state; those of the last layer's h as `.h`, and `.reach()`, the tau up to which 1% of it arrives.

    >>> from mistrnn import MIST
    >>> layer = MIST(1, 16)
    >>> found = gradient_norms(layer, torch.randn(100, 4, 1), lambda outputs: outputs[0][-1].sum())
    >>> found.h.shape
    torch.Size([100])
    """
    watched = _modules_to_watch(model, watch)
    probes: dict[str, list[Tensor]] = {}
    with contextlib.ExitStack() as stack:
        stack.enter_context(torch.enable_grad())
        for name, module in watched.items():
            stack.enter_context(_watching(module, f"{name}." if len(watched) > 1 else "", probes))
        value = loss(model(*inputs) if type(inputs) is tuple else model(inputs))
    if not isinstance(value, Tensor) or value.dim() != 0:
        got = f"shape {list(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
        raise ValueError(f"gradient_norms: expected the loss to be a scalar Tensor, got {got}.")
    if not probes:
        raise ValueError(f"gradient_norms: expected the model to run {', '.join(watched)}, but it did not.")
    if not value.requires_grad:
        raise ValueError("gradient_norms: expected a loss that depends on the states, but it does not.")
    every = [probe for parts in probes.values() for probe in parts]
    found = iter(torch.autograd.grad(value, every, allow_unused=True, materialize_grads=True))
    norms = {
        name: torch.cat([next(found).norm(dim=-1) for _ in parts]) for name, parts in probes.items()
    }  # [T, B] each
    return GradientNorms({name: by_tau(value, at) for name, value in norms.items()})


def by_tau(norms: Tensor, at: int | Tensor | None) -> Tensor:  # [T, B] -> [tau]
    """Return the mean over the batch by the distance from step `at`; of the sequences that reach back so far."""
    steps, batch = norms.shape
    ends = torch.as_tensor(steps - 1 if at is None else at, device=norms.device).expand(batch)
    if steps == 0 or ends.dtype != torch.int64 or not bool(((ends >= 0) & (ends < steps)).all()):
        raise ValueError(f"gradient_norms: expected `at` to be steps from 0 to {steps - 1}, got {at}.")
    taus = torch.arange(int(ends.max()) + 1, device=norms.device).unsqueeze(1)  # [tau, 1]
    there = taus <= ends
    back = norms.gather(0, (ends - taus).clamp_min(0))
    return torch.where(there, back, 0.0).sum(1) / there.sum(1)


def _modules_to_watch(model: nn.Module, watch: nn.Module | Sequence[nn.Module] | None) -> dict[str, nn.Module]:
    names = {module: name or "model" for name, module in model.named_modules()}
    if watch is not None:
        wanted = [watch] if isinstance(watch, nn.Module) else list(watch)
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
def _watching(module: nn.Module, prefix: str, probes: dict[str, list[Tensor]]) -> Iterator[None]:
    """Collect zeros beside the states of a module, in the order of time, while it runs."""
    if isinstance(module, RecurrentLayer):
        with _watching_layer(module, module, prefix, probes):
            yield
    elif isinstance(module, nn.RNNBase):
        # torch's layers do not say what arrives at their states: their twin of ours runs instead.
        twin = next(ours for theirs, ours in TWINS.items() if isinstance(module, theirs)).from_torch(module)
        before = module.__dict__.get("forward")
        with _watching_layer(twin, module, prefix, probes):
            module.forward = lambda input, hx=None: twin(input, hx)
            try:
                yield
            finally:
                if before is None:
                    del module.forward
                else:
                    module.forward = before
    else:
        hook = module.register_forward_hook(lambda *call: _probed_cell(call[-1], module, prefix, probes))
        try:
            yield
        finally:
            hook.remove()


@contextlib.contextmanager
def _watching_layer(
    layer: RecurrentLayer, owner: nn.Module, prefix: str, probes: dict[str, list[Tensor]]
) -> Iterator[None]:
    like = next(owner.parameters())
    many = layer.num_layers * layer.directions > 1

    def new(index: int, steps: int, batch: int) -> tuple[Tensor, ...]:
        number, direction = divmod(index, layer.directions)
        place = f"l{number}{'_reverse' if direction else ''}." if many else ""
        made = []
        for component in layer.state_components:
            # One zero serves: nobody reads it.
            zero = torch.zeros((), dtype=like.dtype, device=like.device)
            made.append(zero.expand(steps, batch, layer.hidden_size).requires_grad_())
            probes.setdefault(prefix + place + component, []).append(made[-1])
        return tuple(made)

    with layer.probed(new):
        yield


def _probed_cell(output: Any, module: nn.Module, prefix: str, probes: dict[str, list[Tensor]]) -> Any:
    """Return what a cell returned with zeros added to its state; a second tensor of a tuple is called c."""
    parts = output if isinstance(output, tuple) else (output,)
    if not parts or not isinstance(parts[0], Tensor) or parts[0].dim() != 2:
        got = f"{list(parts[0].shape)}" if parts and isinstance(parts[0], Tensor) else type(output).__name__
        raise ValueError(
            f"gradient_norms: expected {type(module).__name__} to return its new hidden state [B, H], or a tuple that begins "
            f"with it, got {got}."
        )
    changed = list(parts)
    for k, name in enumerate(("h", "c")[: 2 if isinstance(module, nn.LSTMCell) else 1]):
        probe = torch.zeros_like(parts[k]).unsqueeze(0).requires_grad_()  # [1, B, H]
        probes.setdefault(prefix + name, []).append(probe)
        changed[k] = parts[k] + probe[0]
    return tuple(changed) if isinstance(output, tuple) else changed[0]
