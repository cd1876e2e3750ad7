"""An independent evaluation of all layers in NumPy: one sequence at a time, straight from the paper's equations.

It shares nothing with the library. Sequences are cut at their lengths and resets and evaluated piece by piece; the past
is a plain list; a gate is one matrix product and one function.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


BIASES = ("bias", "bias_ih", "bias_hh")


def sigmoid(z: Array) -> Array:
    return 1 / (1 + np.exp(-z))


def softmax(z: Array) -> Array:
    e = np.exp(z - z.max())
    return e / e.sum()


@dataclass
class Memory:
    """The state of one sequence in one layer and direction: all h since it began (oldest first), c, and the clock."""

    history: list[Array]
    c: Array
    clock: int = 0

    size: int = 0  # of h, where a projection makes it smaller than c

    def h(self, delay: int) -> Array:
        return self.history[-delay] if delay <= len(self.history) else np.zeros(self.size or len(self.c))


@dataclass
class Piece:
    """What one layer in one direction needs besides the input: parameters, settings, and the masks of its draws."""

    name: str
    weights: dict[str, Array]
    hidden: int
    delays: Sequence[int] = ()
    periods: Sequence[int] = ()
    nonlinearity: str = "tanh"
    zoneout: float = 0.0
    zoneout_masks: list[Any] = field(default_factory=list)  # one [T, H] for h, and for LSTM one for c
    dropout_mask: Array | None = None  # [H]

    def gate(
        self, rows: slice, x: Array, recurrent: Array, f: Callable[[Array], Array], biases: Sequence[str] = BIASES
    ) -> Array:
        """f of one gate's pre-activation, given W_hh times its operand."""
        w = self.weights
        z = w["weight_ih"][rows] @ x + recurrent
        bias = np.zeros(len(z))
        for name in biases:
            bias = bias + (w[name][rows] if name in w else 0)
        if "gain" in w:
            z = (z - z.mean()) / np.sqrt(((z - z.mean()) ** 2).mean() + 1e-5) * w["gain"][rows]
        return f(z + bias)

    def read(self, h: Array) -> Array:
        return h if self.dropout_mask is None else h * self.dropout_mask


def mist(p: Piece, x: Array, m: Memory) -> tuple[Array, Array]:
    d, n, w_hh = len(p.delays), p.hidden, p.weights["weight_hh"]
    rows_a, rows_r, rows_h = slice(0, d), slice(d, d + n), slice(d + n, d + 2 * n)
    a = p.gate(rows_a, x, w_hh[rows_a] @ p.read(m.h(1)), softmax)
    r = p.gate(rows_r, x, w_hh[rows_r] @ p.read(m.h(1)), sigmoid)
    mixed = np.zeros(n)
    for weight, delay in zip(a, p.delays, strict=True):
        mixed = mixed + weight * m.h(delay)
    return p.gate(rows_h, x, w_hh[rows_h] @ p.read(r * mixed), np.tanh), m.c


def narx(p: Piece, x: Array, m: Memory) -> tuple[Array, Array]:
    total = np.zeros(p.hidden)
    for i, delay in enumerate(p.delays):
        total = total + p.weights["weight_hh"][:, i * p.hidden : (i + 1) * p.hidden] @ p.read(m.h(delay))
    return p.gate(slice(0, p.hidden), x, total, np.tanh), m.c


def rnn(p: Piece, x: Array, m: Memory) -> tuple[Array, Array]:
    f = np.tanh if p.nonlinearity == "tanh" else lambda z: np.maximum(z, 0)
    return p.gate(slice(0, p.hidden), x, p.weights["weight_hh"] @ p.read(m.h(1)), f), m.c


def clockwork(p: Piece, x: Array, m: Memory) -> tuple[Array, Array]:
    size = p.hidden // len(p.periods)
    h = m.h(1).copy()
    for i, period in enumerate(p.periods):
        if m.clock % period:
            continue
        rows = slice(i * size, (i + 1) * size)
        total = np.zeros(size)
        for j, other in enumerate(p.periods):
            if other >= period:
                columns = slice(j * size, (j + 1) * size)
                total = total + p.weights["weight_hh"][rows, columns] @ p.read(m.h(1))[columns]
        h[rows] = p.gate(rows, x, total, np.tanh)
    return h, m.c


def lstm(p: Piece, x: Array, m: Memory) -> tuple[Array, Array]:
    gates = []
    for k, f in enumerate([sigmoid, sigmoid, np.tanh, sigmoid]):
        rows = slice(k * p.hidden, (k + 1) * p.hidden)
        gates.append(p.gate(rows, x, p.weights["weight_hh"][rows] @ p.read(m.h(1)), f))
    i, f_, g, o = gates
    c = f_ * m.c + i * g
    return p.weights.get("weight_hr", np.eye(p.hidden)) @ (o * np.tanh(c)), c


def peephole_lstm(p: Piece, x: Array, m: Memory) -> tuple[Array, Array]:
    w_hh, (w_ci, w_cf, w_co), read = p.weights["weight_hh"], p.weights["weight_ch"], p.read(m.h(1))
    rows_i, rows_f, rows_g, rows_o = (slice(k * p.hidden, (k + 1) * p.hidden) for k in range(4))
    i = p.gate(rows_i, x, w_hh[rows_i] @ read + np.diag(w_ci) @ m.c, sigmoid)
    f = p.gate(rows_f, x, w_hh[rows_f] @ read + np.diag(w_cf) @ m.c, sigmoid)
    g = p.gate(rows_g, x, w_hh[rows_g] @ read, np.tanh)
    c = f * m.c + i * g
    o = p.gate(rows_o, x, w_hh[rows_o] @ read + np.diag(w_co) @ c, sigmoid)
    return o * np.tanh(c), c


def gru(p: Piece, x: Array, m: Memory) -> tuple[Array, Array]:
    rows_r, rows_z, rows_n = (slice(k * p.hidden, (k + 1) * p.hidden) for k in range(3))
    w_hh, read = p.weights["weight_hh"], p.read(m.h(1))
    r = p.gate(rows_r, x, w_hh[rows_r] @ read, sigmoid)
    z = p.gate(rows_z, x, w_hh[rows_z] @ read, sigmoid)
    inside = p.weights.get("bias_hn", p.weights.get("bias_hh", np.zeros(3 * p.hidden))[-p.hidden :])
    n = p.gate(rows_n, x, r * (w_hh[rows_n] @ read + inside), np.tanh, ("bias", "bias_ih"))
    return (1 - z) * n + z * m.h(1), m.c


CELLS = {
    "mist": mist,
    "narx": narx,
    "rnn": rnn,
    "clockwork": clockwork,
    "lstm": lstm,
    "peephole_lstm": peephole_lstm,
    "gru": gru,
}


def run_sequence(p: Piece, xs: Array, memory: Memory, starts: Sequence[int]) -> tuple[list[Array], Memory]:
    """All h of one sequence [T, I] from `memory`, starting afresh at the steps in `starts`."""
    outputs = []
    for t, x in enumerate(xs):
        if t in starts:
            memory = Memory([], np.zeros(p.hidden), 0, memory.size)
        h, c = CELLS[p.name](p, x, memory)
        if p.zoneout_masks:
            h = np.where(p.zoneout_masks[0][t], memory.h(1), h)
            c = np.where(p.zoneout_masks[1][t], memory.c, c) if len(p.zoneout_masks) > 1 else c
        elif p.zoneout:
            h = p.zoneout * memory.h(1) + (1 - p.zoneout) * h
            c = p.zoneout * memory.c + (1 - p.zoneout) * c
        outputs.append(h)
        memory = Memory([*memory.history, h], c, memory.clock + 1, memory.size)
    return outputs, memory
