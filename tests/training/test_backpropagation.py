"""Gradients in bounded memory: recomputed ones are those of all steps, parts of a batch add up, 100,000 steps fit."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from mistrnn.layers import LAYERS
from mistrnn.tasks import Task, make_task
from mistrnn.tasks.hapt import prepare_hapt
from mistrnn.training import Study
from mistrnn.training.backpropagation import recomputed, truncated
from mistrnn.training.group import Group
from mistrnn.training.memory import bytes_per_trial
from mistrnn.training.model import Model
from mistrnn.training.random_masks import TrialMasks
from tests.tasks.recorded_files import write_hapt
from tests.tolerance import relative_error, violations
from tests.training.long_study import SEGMENTS, TRUNCATE, prepare_long_recordings

CPU = torch.device("cpu")
TRIALS, BATCH = 2, 3
SETTINGS: dict[str, dict[str, Any]] = {"copy": {"delay": 20}, "addition": {"length": 22}}
OWN: dict[str, dict[str, Any]] = {
    "mist": {"delays": [1, 2, 9]},  # longer than most of the segments here
    "narx": {"delays": [1, 3, 7]},
    "clockwork": {"periods": 4},
}
Found = dict[str, Tensor]
"""The gradients of all trials by name, and their losses as "loss"."""


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Task]:
    """Targets at every step, at the end only, and at some steps of sequences of unequal length."""
    folder = tmp_path_factory.mktemp("hapt")
    prepare_hapt(write_hapt(folder / "source"), folder / "frames", frames=True)
    return {
        **{name: make_task(name, settings) for name, settings in SETTINGS.items()},
        "hapt-frames": make_task("hapt-frames", data=folder / "frames"),
    }


def study(name: str, layer: str = "mist", **settings: Any) -> Study:
    options = {**OWN.get(layer, {}), **settings.pop("layer_options", {})}
    fixed = {"task_settings": SETTINGS.get(name, {}), "batch_size": BATCH, "steps": 4, "precision": "fp64"}
    return Study(**{"task": name, "layer": layer, "hidden": 8, "layer_options": options, **fixed, **settings})


def stacked(study: Study, task: Task) -> Found:
    starts = [study.initial_parameters(trial, task) for trial in range(TRIALS)]
    return {name: torch.stack([start[name] for start in starts]) for name in starts[0]}


def batch_of(study: Study, task: Task) -> tuple[Tensor, Tensor, TrialMasks]:
    inputs, targets = task.batch("train", torch.arange(TRIALS * BATCH).reshape(TRIALS, BATCH), study.dtype)
    draws = study.model(task, device="meta").mask_draws()
    keys = torch.tensor([[study.mask_key(trial, 0, k) for k in range(len(draws))] for trial in range(TRIALS)])
    return inputs, targets, TrialMasks(draws, keys, torch.arange(BATCH).expand(TRIALS, -1), BATCH)


def by_autograd(study: Study, task: Task, backend: Any = "auto") -> Found:
    """As anyone would write it: one model after the other, one backward pass through all steps."""
    inputs, targets, masks = batch_of(study, task)
    every, trials = masks.piece(0, inputs.size(1)), []
    for trial in range(TRIALS):
        model = study.model(task)
        model.layer.backend = backend
        model.load_state_dict(study.initial_parameters(trial, task))
        scores, _ = model(inputs[trial], None, [mask[trial] for mask in every])
        loss = task.loss(scores, targets[trial])
        loss.backward()
        found = {name: parameter.grad for name, parameter in model.named_parameters()}
        trials.append({**found, "loss": loss.detach()})
    return {name: torch.stack([trial[name] for trial in trials]) for name in trials[0]}


def by_recomputation(study: Study, task: Task, segments: int, backend: Any = "auto") -> Found:
    model = study.model(task, device="meta")
    model.layer.backend = backend
    inputs, targets, masks = batch_of(study, task)
    length = -(-inputs.size(1) // segments)
    gradients, losses = recomputed(model, task, stacked(study, task), inputs, targets, masks.piece, length=length)
    return {**gradients, "loss": losses}


@pytest.mark.parametrize("name", ["copy", "addition", "hapt-frames"])
@pytest.mark.parametrize("num_layers", [1, 2])
@pytest.mark.parametrize("layer", list(LAYERS))
def test_recomputed_gradients_equal_those_through_all_steps(
    layer: str, num_layers: int, name: str, tasks: dict[str, Task]
) -> None:
    options: dict[str, Any] = {"zoneout": 0.1, "recurrent_dropout": 0.2}
    if num_layers > 1:
        options |= {"num_layers": num_layers, "dropout": 0.3}
    task, chosen = tasks[name], study(name, layer, layer_options=options, readout_dropout=0.3)
    exact = by_autograd(chosen, task)
    # One segment, a number that leaves a shorter last one, and more than there are steps.
    for segments, backend in ((1, "auto"), (5, "reference"), (5, "auto"), (1_000, "auto")):
        found = by_recomputation(chosen, task, segments, backend)
        errors = {key: relative_error(found[key], value) for key, value in exact.items()}
        assert max(errors.values()) < 1e-12, (segments, backend, errors)


@pytest.mark.parametrize("name", ["copy", "addition"])
@pytest.mark.parametrize("layer", list(LAYERS))
def test_recomputed_gradients_in_float32_keep_the_tolerance_rule(layer: str, name: str, tasks: dict[str, Task]) -> None:
    task, single, double = tasks[name], study(name, layer, precision="fp32"), study(name, layer)
    plain, exact = by_autograd(single, task, "reference"), by_autograd(double, task)
    for segments in (4, 7):
        assert violations(by_recomputation(single, task, segments), plain, exact) == {}


def test_truncated_gradients_differ_where_recomputed_ones_do_not(tasks: dict[str, Task]) -> None:
    chosen, task = study("copy"), tasks["copy"]
    inputs, targets, _ = batch_of(chosen, task)
    arguments = chosen.model(task, device="meta"), task, stacked(chosen, task), inputs, targets
    whole, cut, again = (f(*arguments, length=n)[0] for f, n in ((truncated, 24), (truncated, 5), (recomputed, 5)))
    assert relative_error(cut["layer.weight_hh_l0"], whole["layer.weight_hh_l0"]) > 1e-3
    assert relative_error(again["layer.weight_hh_l0"], whole["layer.weight_hh_l0"]) < 1e-12


@pytest.mark.parametrize("backpropagate", [truncated, recomputed])
@pytest.mark.parametrize("name", ["copy", "addition", "hapt-frames"])
def test_parts_of_a_batch_add_up_to_the_whole(name: str, backpropagate: Any, tasks: dict[str, Task]) -> None:
    chosen, task = (
        study(name, layer_options={"zoneout": 0.1, "recurrent_dropout": 0.2}, readout_dropout=0.3),
        tasks[name],
    )
    model, parameters = chosen.model(task, device="meta"), stacked(chosen, task)
    inputs, targets, masks = batch_of(chosen, task)
    expected, expected_losses = backpropagate(model, task, parameters, inputs, targets, masks.piece, length=7)
    counts = torch.func.vmap(task.count)(targets)
    gradients, losses = {key: torch.zeros_like(value) for key, value in parameters.items()}, torch.zeros(TRIALS)
    for part in (slice(0, 2), slice(2, 2), slice(2, 3)):
        own = TrialMasks(masks.draws, masks.keys, masks.places[:, part], BATCH)
        found, values = backpropagate(
            model, task, parameters, inputs[:, :, part], targets[..., part], own.piece,
            length=7, counts=counts, sequences=BATCH,
        )  # fmt: skip
        gradients, losses = {key: value + found[key] for key, value in gradients.items()}, losses + values
    torch.testing.assert_close(losses, expected_losses)
    torch.testing.assert_close(gradients, expected, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("backpropagate", [truncated, recomputed])
def test_empty_batch_gives_zeros_without_the_model(
    backpropagate: Any, tasks: dict[str, Task], monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen, task = study("copy"), tasks["copy"]
    monkeypatch.setattr(Model, "forward", lambda *arguments: pytest.fail("the model was called"))
    parameters = stacked(chosen, task)
    inputs, targets, _ = batch_of(chosen, task)
    model = chosen.model(task, device="meta")
    gradients, losses = backpropagate(model, task, parameters, inputs[:, :, :0], targets[..., :0], length=5)
    assert losses.tolist() == [0.0] * TRIALS
    assert {key: value.shape for key, value in gradients.items()} == {k: v.shape for k, v in parameters.items()}
    assert not any(value.any() for value in gradients.values())


def trained(study: Study, task: Task) -> Group:
    group = Group(study, task, list(range(TRIALS)), CPU)
    while not group.done:
        group.advance()
    return group


@pytest.mark.parametrize("name", ["copy", "addition", "hapt-frames"])
def test_study_in_segments_ends_as_the_study_through_all_steps(name: str, tasks: dict[str, Task]) -> None:
    options = {"zoneout": 0.1, "recurrent_dropout": 0.1, "num_layers": 2, "dropout": 0.2}
    settings = {"readout_dropout": 0.2, "validate_every": 2, "learning_rate": 0.01, "layer_options": options}
    whole = trained(study(name, **settings), tasks[name])
    again = trained(study(name, **settings, checkpoint_segments=5), tasks[name])
    torch.testing.assert_close(again.parameters, whole.parameters, rtol=1e-10, atol=1e-12)
    for one, other in zip(again.records, whole.records, strict=True):
        assert [point[0] for point in one.curve] == [2, 4]
        torch.testing.assert_close(torch.tensor(one.curve), torch.tensor(other.curve), rtol=1e-9, atol=1e-12)


def test_study_in_segments_never_sees_more_steps_at_once(
    tasks: dict[str, Task], monkeypatch: pytest.MonkeyPatch
) -> None:
    forward, seen = Model.forward, []

    def watched(self: Model, input: Tensor, *rest: Any) -> Any:
        seen.append(input.size(0))
        return forward(self, input, *rest)

    monkeypatch.setattr(Model, "forward", watched)
    group = Group(study("copy", checkpoint_segments=5, validate_every=4), tasks["copy"], [0], CPU)
    assert not group.advance()
    assert seen == [5, 5, 5, 5, 4, 5, 5, 5, 5]  # forwards but for the last segment, and back through all
    seen.clear()
    group.evaluate(group.parameters, "val")
    assert seen == [5, 5, 5, 5, 4] * -(-1_000 // group.study.batch_size)


def test_recomputation_in_bf16_stays_near_the_exact_gradients(tasks: dict[str, Task]) -> None:
    task, groups = tasks["copy"], []
    for settings in ({}, {"precision": "bf16"}, {"precision": "bf16", "checkpoint_segments": 5}):
        group = Group(study("copy", **settings), task, [0, 1], CPU)
        inputs, targets, _ = batch_of(group.study, task)
        groups.append(group._gradients(inputs, targets)[0])
    exact, whole, again = groups
    for key, value in exact.items():
        assert again[key].dtype == torch.float32
        assert relative_error(again[key], value) < 2 * relative_error(whole[key], value) + 1e-3


def test_memory_estimate_of_segments_is_one_segment_and_the_states() -> None:
    task = make_task("copy", {"delay": 500})  # 600 steps

    def estimate(**settings: Any) -> int:
        chosen = study("copy", task_settings={"delay": 500}, hidden=32, batch_size=200, precision="fp32", **settings)
        return bytes_per_trial(chosen, task, CPU)

    whole, cut, segments = estimate(), estimate(truncate=120), estimate(checkpoint_segments=5)
    assert segments - cut == 4 * 9 * 200 * 32 * 4  # states of 9 steps, four times
    assert segments < whole / 3


LIMITED = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="limited through Linux's RLIMIT_DATA")


@pytest.fixture(scope="module")
def long_recordings(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("long") / "data"
    prepare_long_recordings(folder)
    return folder


def in_little_memory(data: Path, out: Path, settings: dict[str, Any]) -> dict[str, Any]:
    command = [sys.executable, "-m", "tests.training.long_study", str(data), str(out), json.dumps(settings)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    root = Path(__file__).parents[2]
    done = subprocess.run(command, cwd=root, env=environment, check=True, capture_output=True, text=True, timeout=300)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@LIMITED
@pytest.mark.parametrize("settings", [{"checkpoint_segments": SEGMENTS}, {"truncate": TRUNCATE}], ids=str)
def test_hundred_thousand_steps_train_in_little_memory(
    settings: dict[str, Any], long_recordings: Path, tmp_path: Path
) -> None:
    found = in_little_memory(long_recordings, tmp_path, settings)
    assert found["steps"] == 100_000
    assert (found["status"], found["taken"]) == ("ok", 2)
    assert 0.4 < found["test_error"] < 0.6  # labels are drawn like a coin's sides


@LIMITED
def test_hundred_thousand_steps_at_once_do_not_fit_there(long_recordings: Path, tmp_path: Path) -> None:
    found = in_little_memory(long_recordings, tmp_path, {})
    assert found["error"].startswith("one trial does not fit into the memory of cpu: ")
