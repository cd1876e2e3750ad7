"""The norms of weight gradients on a task's sequences: the last target's loss, each sequence from its own end."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from mistrnn.analysis import weight_gradients
from mistrnn.tasks import Task, make_task
from mistrnn.tasks.hapt import prepare_hapt
from mistrnn.training import Study
from mistrnn.training.model import Model
from mistrnn.training.weight_signal import weight_norms
from tests.tasks.recorded_files import write_hapt


def model_of(task: Task) -> Model:
    options = {"delays": [1, 3], "zoneout": 0.2}
    study = Study(task=task.name, layer="mist", hidden=6, layer_options=options, batch_size=4, precision="fp64")
    model = study.model(task)
    model.load_state_dict(study.initial_parameters(0, task))
    return model


@pytest.mark.parametrize("name", ["copy", "addition"])
def test_norms_of_equally_long_sequences_are_those_of_one_batch(name: str) -> None:
    task = make_task(name, {"copy": {"delay": 10}, "addition": {"length": 12}}[name])
    model = model_of(task)
    inputs, targets = task.batch("val", torch.arange(5), torch.float64)

    def loss(result: Any) -> Tensor:
        return task.loss(result[0][-1:], targets[-1:]) if task.every_step else task.loss(result[0], targets)

    expected = weight_gradients(model.eval(), inputs, loss).norms()
    model.train()
    found = weight_norms(model, task, 5)
    assert model.training
    assert found.keys() == expected.keys()
    for key, value in found.items():
        torch.testing.assert_close(value, expected[key], rtol=1e-10, atol=1e-14)


def test_components_of_sequences_of_unequal_length_are_added_tau_by_tau(tmp_path: Path) -> None:
    prepare_hapt(write_hapt(tmp_path / "source"), tmp_path / "data", frames=False)
    task = make_task("hapt", data=tmp_path / "data")
    model = model_of(task).eval()
    parts = []
    for k in task.order("val")[:6]:
        inputs, targets = task.batch("val", k.view(1), torch.float64)
        end = int(task.lengths("val", k))
        inputs, targets = inputs[:end], targets[:end]
        parts.append(weight_gradients(model, inputs, lambda result, y=targets[-1:]: task.loss(result[0][-1:], y)))
    lengths = [len(part.parameters["layer.bias_l0"]) for part in parts]
    assert len(set(lengths)) > 1
    expected = sum(parts[1:], parts[0])
    found = weight_norms(model, task, 6)
    for name, value in expected.norms().items():
        assert len(value) == max(lengths)
        torch.testing.assert_close(found[name], value, rtol=1e-10, atol=1e-14)
    assert parts[0].__add__(1) is NotImplemented
