"""A study's settings, and what follows from (seed, trial)."""

import json
import math
from typing import Any

import pytest
import torch

from mistrnn.errors import UsageError
from mistrnn.tasks import make_task
from mistrnn.training import Study


def study(**settings: Any) -> Study:
    return Study(**{"task": "copy", "layer": "mist", "hidden": 8, "task_settings": {"delay": 10}, **settings})


def test_learning_rates_are_log_uniform_between_the_papers_bounds() -> None:
    logs = [math.log10(study(seed=1).learning_rate_of(k)) for k in range(2000)]
    assert -4 <= min(logs) < -3.95
    assert 0.95 < max(logs) < 1
    thirds = [sum(-4 + 5 * i / 3 <= value < -4 + 5 * (i + 1) / 3 for value in logs) for i in range(3)]
    assert all(600 < count < 740 for count in thirds)


def test_everything_of_a_trial_follows_from_seed_and_trial() -> None:
    task = make_task("copy", {"delay": 10})
    a, b, other = study(trials=3), study(trials=50, steps=7), study(seed=1)
    assert a.learning_rate_of(2) == b.learning_rate_of(2) != other.learning_rate_of(2)
    assert a.learning_rate_of(1) != a.learning_rate_of(2)
    assert torch.equal(a.data_order(2, 0, 100), b.data_order(2, 0, 100))
    assert not torch.equal(a.data_order(2, 0, 100), a.data_order(2, 1, 100))
    assert not torch.equal(a.data_order(2, 0, 100), a.data_order(1, 0, 100))
    assert sorted(a.data_order(2, 0, 100).tolist()) == list(range(100))
    state = torch.get_rng_state()
    weights, again, third = (s.initial_parameters(k, task) for s, k in ((a, 2), (b, 2), (a, 1)))
    assert torch.equal(torch.get_rng_state(), state)
    for name, value in weights.items():
        assert torch.equal(value, again[name])
        if "weight" in name:
            assert not torch.equal(value, third[name])


def test_double_precision_starts_from_the_same_weights() -> None:
    task = make_task("copy", {"delay": 10})
    single, double = study().initial_parameters(0, task), study(precision="fp64").initial_parameters(0, task)
    for name, value in single.items():
        assert torch.equal(value.double(), double[name])


def test_readout_starts_as_in_the_paper() -> None:
    task = make_task("copy", {"delay": 10})
    parameters = study(hidden=64).initial_parameters(0, task)
    assert parameters["readout.weight"].std().item() == pytest.approx(64**-0.5, rel=0.1)
    assert not parameters["readout.bias"].any()


def test_steps_and_interval_default_to_the_tasks() -> None:
    assert study().total_steps == 100_000
    assert study().validation_interval == 25
    assert Study(task="pmnist", layer="lstm", hidden=100).total_steps == 15_000


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"task": "cpoy"}, "expected a task among copy, addition, smnist, pmnist, timit,"),
        ({"layer": "mits"}, "expected a layer among mist, narx, clockwork, rnn, lstm, peephole_lstm, gru, got 'mits'."),
        ({"hidden": 0}, "expected hidden to be a whole number >= 1, got 0."),
        ({"trials": -3}, "expected trials to be a whole number >= 1, got -3."),
        ({"steps": 0}, "expected steps to be a whole number >= 1, got 0."),
        ({"batch_size": 0}, "expected batch_size to be a whole number >= 1, got 0."),
        ({"truncate": 0}, "expected truncate to be a whole number >= 1, got 0."),
        ({"checkpoint_segments": 0}, "expected checkpoint_segments to be a whole number >= 1, got 0."),
        ({"truncate": 5, "checkpoint_segments": 3}, "expected either truncate or checkpoint_segments, because"),
        (
            {"truncate": 5, "layer_options": {"bidirectional": True}},
            "expected one direction with truncate, because the second reads from the end",
        ),
        (
            {"checkpoint_segments": 5, "layer_options": {"bidirectional": True}},
            "expected one direction with checkpoint_segments, because the second reads from the end",
        ),
        ({"validate_every": -1}, "expected validate_every to be a whole number >= 1, got -1."),
        ({"seed": -1}, "expected seed to be a whole number between 0 and 2^31 - 1, got -1."),
        ({"seed": 2**31}, "expected seed to be a whole number between 0 and 2^31 - 1, got 2147483648."),
        ({"seed": 1.5}, "expected seed to be a whole number between 0 and 2^31 - 1, got 1.5."),
        ({"seed": "1"}, "expected seed to be a whole number between 0 and 2^31 - 1, got '1'."),
        ({"optimizer": "sdg"}, "expected optimizer among sgd, adam, adamw, got 'sdg'."),
        ({"schedule": "step"}, "expected schedule among constant, cosine, halving, halving-in-12ths, got 'step'."),
        ({"initialization": "zero"}, "expected initialization among normal, uniform, groups, got 'zero'."),
        ({"initialization": "groups"}, "mist: expected no initialization='groups', because only clockwork has groups."),
        ({"keep": "first"}, "expected keep among best, last, got 'first'."),
        (
            {"task": "hapt", "task_settings": {}, "layer_options": {"bidirectional": True}},
            "hapt: expected one direction",
        ),
        ({"momentum": 1.0}, "expected 0 <= momentum < 1, got 1.0."),
        ({"readout_dropout": -0.1}, "expected 0 <= readout_dropout < 1, got -0.1."),
        ({"precision": "fp8"}, "expected precision among high, fp32, bf16, fp64, got 'fp8'."),
        ({"learning_rate": 0.0}, "expected learning_rate > 0, got 0.0."),
        ({"learning_rate": float("nan")}, "expected learning_rate > 0, got nan."),
        ({"learning_rate": "0.1"}, "expected learning_rate to be a number, got '0.1'."),
        ({"weight_decay": -1.0}, "expected weight_decay >= 0, got -1.0."),
        ({"weight_decay": None}, "expected weight_decay to be a number, got None."),
        ({"layer": "clockwork", "hidden": 9}, "Clockwork: expected hidden_size to be a multiple of 8"),
        ({"layer_options": {"delays": [0]}}, "MIST: expected delays >= 1, because they count steps, got 0 in [0]."),
        ({"layer_options": {"periods": 3}}, "mist: expected no periods, because they belong to clockwork."),
        ({"layer_options": {"delay": 3}}, "MIST: expected options among num_layers, bias, "),
        ({"forget_bias": 1.0}, "mist: expected no forget_bias, because only lstm and peephole_lstm have it."),
        ({"layer": "lstm", "forget_bias": "a"}, "expected forget_bias to be a number, got 'a'."),
        ({"layer_options": {"dropout": 0.1}}, "expected num_layers > 1 with dropout, which acts between layers"),
        ({"layer_options": {"batch_first": True}}, "expected no batch_first among layer_options, because"),
        ({"layer_options": {"dtype": torch.float64}}, "expected no dtype among layer_options, because"),
        ({"layer_options": {"device": "cpu"}}, "expected no device among layer_options, because"),
        (
            {"layer_options": {"delays": range(1, 4)}},
            "expected layer_options that JSON can hold (numbers, words, lists)",
        ),
        ({"task_settings": {"delay": {10}}}, "expected task_settings that JSON can hold (numbers, words, lists)"),
    ],
)
def test_settings_that_cannot_work_are_refused(settings: dict[str, Any], expected: str) -> None:
    with pytest.raises(UsageError) as caught:
        study(**settings)
    assert str(caught.value).startswith(expected)


def test_steps_at_once_are_those_of_a_chunk_or_a_segment() -> None:
    assert study().steps_at_once(100) == 100
    assert [study(truncate=30).steps_at_once(steps) for steps in (100, 20)] == [30, 20]
    assert [study(checkpoint_segments=3).steps_at_once(steps) for steps in (99, 100, 2)] == [33, 34, 1]


def test_settings_survive_json_as_they_are() -> None:
    chosen = study(layer_options={"delays": (1, 2, 4)})
    assert chosen.differences(json.loads(json.dumps(chosen.as_dict()))) == []


def test_differences_name_what_was_set_otherwise() -> None:
    assert study(steps=5).differences(study(steps=5).as_dict()) == []
    assert study(steps=5, seed=1).differences(study(steps=7).as_dict()) == [
        "steps: 7 there, 5 here",
        "seed: 0 there, 1 here",
    ]


def test_studies_of_earlier_versions_go_on_with_what_was_always_so() -> None:
    stored = study().as_dict()
    for later in ("momentum", "initialization", "readout_dropout", "keep", "gradients_every", "checkpoint_segments"):
        stored.pop(later)
    assert study().differences(stored) == []
    assert study(momentum=0.5).differences(stored) == ["momentum: 0.9 there, 0.5 here"]
