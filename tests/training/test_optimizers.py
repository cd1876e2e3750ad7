"""The optimisers over a trial axis equal torch.optim's, trial by trial."""

from typing import Any

import pytest
import torch

from mistrnn.training.optimizers import Optimizer, clip, schedule_factor

RATES = [0.3, 0.01, 2.0]


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
@pytest.mark.parametrize(
    ("kind", "theirs"),
    [
        ("sgd", lambda p, **k: torch.optim.SGD(p, momentum=0.9, **k)),
        ("adam", torch.optim.Adam),
        ("adamw", torch.optim.AdamW),
    ],
)
def test_updates_equal_torch_optim_for_each_trial(kind: str, theirs: Any, weight_decay: float) -> None:
    start = {"weight": torch.randn(3, 4, 5, dtype=torch.float64), "bias": torch.randn(3, 4, dtype=torch.float64)}
    stacked = {name: value.clone() for name, value in start.items()}
    ours = Optimizer(kind, stacked, weight_decay)
    singles = [[torch.nn.Parameter(value[k].clone()) for value in start.values()] for k in range(3)]
    optims = [theirs(single, lr=rate, weight_decay=weight_decay) for single, rate in zip(singles, RATES, strict=True)]
    for step in range(1, 6):
        gradients = {name: torch.randn_like(value) for name, value in stacked.items()}
        ours.update(stacked, gradients, torch.tensor(RATES, dtype=torch.float64), step)
        for k, (single, optim) in enumerate(zip(singles, optims, strict=True)):
            for parameter, gradient in zip(single, gradients.values(), strict=True):
                parameter.grad = gradient[k]
            optim.step()
    for k, single in enumerate(singles):
        for parameter, value in zip(single, stacked.values(), strict=True):
            torch.testing.assert_close(value[k], parameter.detach(), rtol=1e-12, atol=1e-12)


def test_clip_rescales_each_trial_by_its_own_global_norm() -> None:
    gradients = {"a": torch.tensor([[3.0, 0.0], [0.3, 0.0], [0.0, 0.0]]), "b": torch.tensor([[4.0], [0.4], [0.0]])}
    clipped, norms = clip(gradients)
    torch.testing.assert_close(norms, torch.tensor([5.0, 0.5, 0.0]))
    torch.testing.assert_close(clipped["a"], torch.tensor([[0.6, 0.0], [0.3, 0.0], [0.0, 0.0]]))
    torch.testing.assert_close(clipped["b"], torch.tensor([[0.8], [0.4], [0.0]]))


def test_clip_of_one_trial_without_numbers_leaves_the_others() -> None:
    clipped, norms = clip({"a": torch.tensor([[float("nan")], [5.0]])})
    assert norms[0].isnan()
    assert clipped["a"][1].item() == 1.0


def test_cosine_schedule_starts_at_one_and_falls_to_zero() -> None:
    factors = [schedule_factor("cosine", step, 100) for step in range(1, 101)]
    assert factors[0] == 1.0
    assert factors == sorted(factors, reverse=True)
    assert factors[50] == pytest.approx(0.5)
    assert 0 < factors[-1] < 1e-3
    assert schedule_factor("constant", 70, 100) == 1.0


def test_halving_in_twelfths_is_the_schedule_of_600_sweeps() -> None:
    factors = [schedule_factor("halving-in-12ths", step, 600) for step in range(1, 601)]
    assert factors == [1.0] * 300 + [0.5 ** (1 + k // 50) for k in range(300)]
