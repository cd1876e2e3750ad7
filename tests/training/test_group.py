"""Trials are an axis: a trial in a sweep equals the same trial alone, and equals a plain training loop."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from mistrnn.analysis import gradient_norms
from mistrnn.errors import UsageError
from mistrnn.layers import LAYERS
from mistrnn.tasks import IGNORED, Task, make_task
from mistrnn.tasks.hapt import prepare_hapt
from mistrnn.tasks.surgical import prepare_surgical
from mistrnn.training import Study
from mistrnn.training.group import Group
from mistrnn.training.processes import Processes
from mistrnn.training.random_masks import TrialMasks
from tests.tasks.own_regression import OWN
from tests.tasks.recorded_files import shorten, write_gesture_phase, write_hapt
from tests.tolerance import violations

CPU = torch.device("cpu")
STEPS = 20


@pytest.fixture(scope="module")
def task() -> Task:
    return make_task("copy", {"delay": 10})


def study(**settings: Any) -> Study:
    fixed = {
        "task": "copy",
        "task_settings": {"delay": 10},
        "layer": "mist",
        "hidden": 8,
        "trials": 50,
        "batch_size": 10,
    }
    return Study(**{**fixed, "steps": STEPS, "validate_every": STEPS, "precision": "fp64", **settings})


def trained(study: Study, task: Task, trials: list[int], device: torch.device = CPU) -> Group:
    group = Group(study, task, trials, device)
    for _ in range(STEPS):
        group.advance()
    return group


def of_trial(group: Group, trial: int) -> dict[str, Tensor]:
    row = [group.records[k].trial for k in group.running].index(trial)
    return {name: value[row].cpu() for name, value in group.parameters.items()}


def plain_loop(study: Study, task: Task, trial: int) -> dict[str, Tensor]:
    """The same trial as anyone would write it: one module, autograd, torch.optim."""
    model = study.model(task)
    model.load_state_dict(study.initial_parameters(trial, task))
    optimizer = torch.optim.SGD(model.parameters(), lr=study.learning_rate_of(trial), momentum=0.9)
    order = study.data_order(trial, 0, task.sizes["train"])
    for step in range(STEPS):
        inputs, targets = task.batch("train", order[step * 10 : (step + 1) * 10], torch.float64)
        scores, _ = model(inputs)
        loss = 10 * torch.nn.functional.cross_entropy(scores.flatten(0, 1), targets.flatten())
        optimizer.zero_grad()
        loss.backward()
        norm = torch.stack([parameter.grad.square().sum() for parameter in model.parameters()]).sum().sqrt()
        for parameter in model.parameters():
            parameter.grad *= min(1.0, 1.0 / norm.item())
        optimizer.step()
    return {name: parameter.detach() for name, parameter in model.named_parameters()}


def close(a: dict[str, Tensor], b: dict[str, Tensor], tolerance: float = 1e-10) -> None:
    for name, value in a.items():
        torch.testing.assert_close(value, b[name], rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("layer", list(LAYERS))
def test_trial_in_a_sweep_of_fifty_equals_the_trial_alone(task: Task, layer: str) -> None:
    options = {"clockwork": {"periods": 4}, "mist": {"delays": 4}, "narx": {"delays": 3}}.get(layer, {})
    chosen = study(layer=layer, layer_options=options)
    group = trained(chosen, task, list(range(50)))
    for trial in (0, 17, 49):
        assert trial in [group.records[k].trial for k in group.running]
        alone = trained(chosen, task, [trial])
        close(of_trial(group, trial), of_trial(alone, trial))
        assert alone.records[0].best_error == pytest.approx(group.records[trial].best_error, abs=1e-12)


def test_trial_equals_a_plain_training_loop(task: Task) -> None:
    chosen = study()
    group = trained(chosen, task, [3, 4, 5])
    for trial in (3, 4, 5):
        close(of_trial(group, trial), plain_loop(chosen, task, trial))


def test_trial_in_a_float32_sweep_keeps_the_tolerance_rule(task: Task) -> None:
    # Trials with a high learning rate amplify rounding, in a sweep and alone alike; these three have a moderate one.
    chosen = [k for k in range(50) if 1e-3 < study().learning_rate_of(k) < 3e-2][:3]
    sweep, exact = trained(study(precision="fp32"), task, list(range(50))), trained(study(), task, chosen)
    for trial in chosen:
        alone = trained(study(precision="fp32"), task, [trial])
        assert violations(of_trial(sweep, trial), of_trial(alone, trial), of_trial(exact, trial)) == {}


def test_other_trials_and_their_order_change_nothing(task: Task) -> None:
    chosen = study()
    expected = of_trial(trained(chosen, task, [7]), 7)
    for company in ([7, 8], [3, 2, 7], [20, 7, 1, 30, 4]):
        close(of_trial(trained(chosen, task, company), 7), expected)


def test_neighbour_that_diverges_is_taken_out_and_changes_nothing(task: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = Study.learning_rate_of
    monkeypatch.setattr(Study, "learning_rate_of", lambda self, trial: 1e308 if trial == 8 else drawn(self, trial))
    chosen = study(validate_every=5)
    group = trained(chosen, task, [7, 8, 9])
    assert group.records[1].diverged_step is not None
    assert 1 <= group.records[1].diverged_step <= 5
    assert [group.records[k].trial for k in group.running] == [7, 9]
    assert group.parameters["readout.weight"].size(0) == 2
    for trial in (7, 9):
        close(of_trial(group, trial), of_trial(trained(chosen, task, [trial]), trial))
    assert [point[0] for point in group.records[0].curve] == [5, 10, 15, 20]
    assert all(point[0] < group.records[1].diverged_step for point in group.records[1].curve)


def test_group_whose_trials_all_diverge_is_done(task: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Study, "learning_rate_of", lambda self, trial: 1e308)
    group = Group(study(validate_every=5), task, [0, 1], CPU)
    while not group.done:
        group.advance()
    assert group.step == 5
    assert group.running == []


def test_best_parameters_are_those_of_the_best_validation(task: Task) -> None:
    chosen = study(validate_every=4, learning_rate=5.0)  # so high that the error goes up and down
    group = Group(chosen, task, [0, 1, 2], CPU)
    seen: dict[int, tuple[float, dict[str, Tensor]]] = {}
    for _ in range(STEPS):
        if group.advance():
            for k in group.running:
                error = group.records[k].curve[-1][2]
                if k not in seen or error < seen[k][0]:
                    seen[k] = (error, {n: v.clone() for n, v in of_trial(group, k).items()})
    for k, (error, parameters) in seen.items():
        assert group.records[k].best_error == error
        close({name: value[k] for name, value in group.best.items()}, parameters, 0.0)
    assert group.evaluate(group.best, "val") == [record.best_error for record in group.records]


def test_truncation_at_the_full_length_changes_nothing_and_shorter_does(task: Task) -> None:
    full = of_trial(trained(study(), task, [7]), 7)
    close(of_trial(trained(study(truncate=task.steps), task, [7]), 7), full)
    cut = of_trial(trained(study(truncate=4), task, [7]), 7)
    assert not torch.allclose(cut["layer.weight_hh_l0"], full["layer.weight_hh_l0"], rtol=1e-6)


@pytest.mark.parametrize("name", ["copy", "addition"])
def test_truncated_gradients_equal_a_loop_with_detached_states(name: str) -> None:
    settings = {"copy": {"delay": 10}, "addition": {"length": 12}}[name]
    task = make_task(name, settings)
    chosen = study(task=name, task_settings=settings, truncate=5, layer="lstm")
    group = Group(chosen, task, [0, 1], CPU)
    inputs, targets = task.batch("train", torch.arange(20).reshape(2, 10), torch.float64)
    gradients, losses = group._gradients(inputs, targets)
    model = chosen.model(task)
    for trial in (0, 1):
        model.load_state_dict(chosen.initial_parameters(trial, task))
        state, total = None, torch.zeros((), dtype=torch.float64)
        for begin in range(0, 12, 5):
            part = inputs[trial, begin : begin + 5]
            scores, state = model(part, state)
            state = tuple(value.detach() for value in state)
            if task.every_step:
                total = total + task.loss(scores, targets[trial, begin : begin + 5]) * part.size(0) / 12
            elif begin + 5 >= 12:
                total = task.loss(scores, targets[trial])
        expected = torch.autograd.grad(total, list(model.parameters()))
        torch.testing.assert_close(losses[trial], total.detach())
        for (key, _), gradient in zip(model.named_parameters(), expected, strict=True):
            torch.testing.assert_close(gradients[key][trial], gradient)


def test_bf16_trains_with_parameters_in_full(task: Task) -> None:
    group = trained(study(precision="bf16", learning_rate=0.01), task, [0, 1])
    exact = trained(study(learning_rate=0.01), task, [0, 1])
    for name, value in group.parameters.items():
        assert value.dtype == torch.float32
        error = (value.double() - exact.parameters[name]).norm() / exact.parameters[name].norm()
        assert 1e-6 < error < 0.1


def test_every_epoch_shows_every_sequence_once(task: Task) -> None:
    chosen = study(batch_size=25_000)
    group = Group(chosen, task, [0, 1], CPU)
    seen = []
    for step in range(5):
        group.step = step
        seen.append(group._next_index())
    first = torch.cat(seen[:4], dim=1)
    assert torch.equal(first.sort(1).values, torch.arange(100_000).expand(2, -1))
    assert not torch.equal(first[0], first[1])
    assert not torch.equal(seen[4], seen[0])


@pytest.mark.gpu
def test_sweep_on_the_gpu_equals_the_cpu(task: Task) -> None:
    cpu, exact = (
        trained(study(precision="fp32", learning_rate=0.01), task, [0, 1, 2]),
        trained(study(learning_rate=0.01), task, [0, 1, 2]),
    )
    gpu = trained(
        study(precision="fp32", learning_rate=0.01),
        make_task("copy", {"delay": 10}).to("cuda"),
        [0, 1, 2],
        torch.device("cuda"),
    )
    for trial in (0, 1, 2):
        assert violations(of_trial(gpu, trial), of_trial(cpu, trial), of_trial(exact, trial)) == {}


@pytest.mark.gpu
@pytest.mark.parametrize(
    "settings",
    [{}, {"truncate": 5}, {"checkpoint_segments": 3}, {"optimizer": "adam"}, {"precision": "bf16"}],
    ids=str,
)
def test_recorded_step_equals_the_plain_one_on_the_gpu(
    monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any]
) -> None:
    task, device = make_task("copy", {"delay": 10}).to("cuda"), torch.device("cuda")
    chosen = study(**{"precision": "fp64", "validate_every": 5, **settings})
    recorded = trained(chosen, task, [0, 1, 2], device)
    assert recorded._captured
    monkeypatch.setattr("mistrnn.training.group.Captured", lambda function, *arguments: function)
    plain = trained(chosen, task, [0, 1, 2], device)
    tolerance = 1e-2 if chosen.precision == "bf16" else 1e-10
    for trial in (0, 1, 2):
        close(of_trial(recorded, trial), of_trial(plain, trial), tolerance)


@pytest.mark.gpu
def test_recording_is_renewed_when_a_trial_is_taken_out(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = Study.learning_rate_of
    monkeypatch.setattr(Study, "learning_rate_of", lambda self, trial: 1e308 if trial == 8 else drawn(self, trial))
    task, device = make_task("copy", {"delay": 10}).to("cuda"), torch.device("cuda")
    chosen = study(validate_every=5)
    group = trained(chosen, task, [7, 8, 9], device)
    assert [group.records[k].trial for k in group.running] == [7, 9]
    for trial in (7, 9):
        close(of_trial(group, trial), of_trial(trained(chosen, task, [trial], device), trial))


@pytest.mark.parametrize("layer", list(LAYERS))
def test_gradient_norms_of_each_trial_are_those_of_its_model_alone(layer: str, task: Task) -> None:
    settings = study(layer=layer, gradients_every=STEPS)
    group = trained(settings, task, [3, 0, 7])
    inputs, targets = task.batch("val", torch.arange(10), torch.float64)
    for record in group.records:
        assert [step for step, _ in record.gradients] == [0, STEPS]
        model = settings.model(task)
        for parameters, (_, norms) in zip(
            (settings.initial_parameters(record.trial, task), of_trial(group, record.trial)),
            record.gradients,
            strict=True,
        ):
            model.load_state_dict(parameters)
            # The sum over sequences of the loss at the last step.
            expected = gradient_norms(
                model,
                inputs,
                lambda result: torch.nn.functional.cross_entropy(result[0][-1], targets[-1], reduction="sum"),
            )
            torch.testing.assert_close(norms, expected.h, rtol=1e-9, atol=1e-13)


@pytest.mark.parametrize("kind", OWN)
@pytest.mark.parametrize("layer", ["mist", "lstm"])
def test_gradient_norms_of_a_regression_at_every_step_are_those_of_the_last_target(kind: Any, layer: str) -> None:
    own = kind()
    settings = study(layer=layer, gradients_every=STEPS)
    group = Group(settings, own, [3, 0], CPU)
    group._measure_gradients()
    inputs, targets = own.batch("val", torch.arange(10), torch.float64)
    last = own.lengths("val", torch.arange(10)) - 1
    model = settings.model(own)
    for row, record in enumerate(group.records):
        model.load_state_dict({key: value[row] for key, value in group.parameters.items()})
        ((_, norms),) = record.gradients
        expected = gradient_norms(
            model,
            inputs,
            lambda result: (result[0].squeeze(-1) - targets)[last, torch.arange(10)].square().sum(),
            at=last,
        )
        torch.testing.assert_close(norms, expected.h, rtol=1e-9, atol=1e-13)


def test_measuring_gradients_changes_no_training(task: Task) -> None:
    measured, not_measured = (of_trial(trained(study(gradients_every=every), task, [0, 1]), 1) for every in (3, None))
    for name, value in measured.items():
        assert torch.equal(value, not_measured[name])


def test_gradient_norms_go_on_after_a_trial_is_lost(task: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Study, "learning_rate_of", lambda self, trial: float("inf") if trial == 0 else 0.01)
    group = trained(study(gradients_every=5, validate_every=5), task, [0, 1])
    assert len(group.records[0].gradients) < 5
    assert [step for step, _ in group.records[1].gradients] == [0, 5, 10, 15, 20]
    assert all(norms.isfinite().all() for _, norms in group.records[1].gradients)


@pytest.fixture(scope="module")
def recordings(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Task]:
    """Sequences of unequal lengths: with a label for each frame (some without), and with one at the end."""
    root = tmp_path_factory.mktemp("hapt")
    source = write_hapt(root / "source")
    prepare_hapt(source, root / "frames", frames=True)
    prepare_hapt(source, root / "segments", frames=False)
    return {
        "hapt-frames": make_task("hapt-frames", data=root / "frames"),
        "hapt": make_task("hapt", data=root / "segments"),
    }


def alone(task: Task, split: Any, index: int) -> tuple[Tensor, Tensor, Tensor]:
    """A sequence by itself: its frames without padding, [T, 1, I], where its targets are, and the targets."""
    inputs, targets = task.batch(split, torch.tensor([index]), torch.float64)
    length = int((inputs.abs().sum((1, 2)) > 0).nonzero().max()) + 1
    places = (targets[:, 0] != IGNORED).nonzero().flatten()
    return inputs[:length], places, targets[places, 0]


@pytest.mark.parametrize("name", ["hapt-frames", "hapt"])
@pytest.mark.parametrize("truncate", [None, 7])
def test_unequal_lengths_train_as_each_sequence_alone(
    name: str, truncate: int | None, recordings: dict[str, Task]
) -> None:
    own = recordings[name]
    settings = study(task=name, task_settings={}, layer="lstm", hidden=5, trials=3, batch_size=4, truncate=truncate)
    group = Group(settings, own, [0, 2], CPU)
    index = group._next_index()
    gradients, losses = group._gradients(*own.batch("train", index, torch.float64))
    for row in range(2):
        model = settings.model(own)
        model.load_state_dict({key: value[row] for key, value in group.parameters.items()})
        total, count = torch.zeros((), dtype=torch.float64), 0
        for k in index[row].tolist():
            inputs, places, targets = alone(own, "train", k)
            pieces, state = [], None
            for begin in range(0, len(inputs), truncate or len(inputs)):
                scores, state = model(inputs[begin : begin + (truncate or len(inputs))], state)
                state = tuple(part.detach() for part in state)
                pieces.append(scores)
            total = total + torch.nn.functional.cross_entropy(torch.cat(pieces)[places, 0], targets, reduction="sum")
            count += len(targets)
        loss = 4 * total / count
        loss.backward()
        torch.testing.assert_close(losses[row], loss.detach())
        for key, parameter in model.named_parameters():
            torch.testing.assert_close(gradients[key][row], parameter.grad, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", ["hapt-frames", "hapt"])
@pytest.mark.parametrize("truncate", [None, 7])
def test_unequal_lengths_are_evaluated_to_the_frame(
    name: str, truncate: int | None, recordings: dict[str, Task]
) -> None:
    own = recordings[name]
    settings = study(task=name, task_settings={}, layer="mist", hidden=5, trials=2, batch_size=4, truncate=truncate)
    group = Group(settings, own, [0, 1], CPU)
    found = group.evaluate(group.parameters, "test")
    for row in range(2):
        model = settings.model(own)
        model.load_state_dict({key: value[row] for key, value in group.parameters.items()})
        wrong = count = 0
        for k in range(own.sizes["test"]):
            inputs, places, targets = alone(own, "test", k)
            with torch.no_grad():
                wrong += int((model(inputs)[0][places, 0].argmax(-1) != targets).sum())
            count += len(targets)
        assert found[row] == wrong / count


def test_gradient_norms_count_from_each_sequences_own_end(recordings: dict[str, Task]) -> None:
    own = recordings["hapt"]
    settings = study(task="hapt", task_settings={}, layer="rnn", hidden=5, trials=1, batch_size=4, gradients_every=1)
    group = Group(settings, own, [0], CPU)
    group._measure_gradients()
    ((_, norms),) = group.records[0].gradients
    model = settings.model(own)
    model.load_state_dict({key: value[0] for key, value in group.parameters.items()})
    single = []
    for k in own.order("val")[:4].tolist():
        inputs, _, targets = alone(own, "val", k)
        single.append(
            gradient_norms(
                model, inputs, lambda r, y=targets: torch.nn.functional.cross_entropy(r[0][-1], y, reduction="sum")
            ).h
        )
    for tau, norm in enumerate(norms.tolist()):
        there = [values[tau].item() for values in single if tau < len(values)]
        assert norm == pytest.approx(sum(there) / len(there), rel=1e-9)


def test_halving_uniform_weights_no_momentum_and_the_last_parameters(task: Task) -> None:
    settings = study(
        schedule="halving", initialization="uniform", momentum=0.0, keep="last", learning_rate=0.5, layer="rnn"
    )
    start = settings.initial_parameters(0, task)
    weights = torch.cat([value.flatten() for key, value in start.items() if "weight" in key])
    assert 0.09 < weights.abs().max() <= 0.1
    assert weights.mean().abs() < 0.01
    group = trained(settings, task, [0])
    model = settings.model(task)
    model.load_state_dict(start)
    order = settings.data_order(0, 0, task.sizes["train"])
    for step in range(STEPS):
        inputs, targets = task.batch("train", order[step * 10 : (step + 1) * 10], torch.float64)
        model.zero_grad()
        (10 * torch.nn.functional.cross_entropy(model(inputs)[0].flatten(0, 1), targets.flatten())).backward()
        norm = torch.stack([parameter.grad.square().sum() for parameter in model.parameters()]).sum().sqrt()
        rate = 0.5 if step < 10 else 0.5 * 0.5 ** (1 + (step - 10) * 16 // 20)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= rate * parameter.grad / max(1.0, norm.item())
    for key, value in model.state_dict().items():
        torch.testing.assert_close(of_trial(group, 0)[key], value, rtol=1e-6, atol=1e-9)
        assert torch.equal(group.best[key][0], group.parameters[key][0])


@pytest.mark.parametrize("layer", ["lstm", "peephole_lstm"])
def test_forget_bias_is_that_of_the_study(task: Task, layer: str) -> None:
    for wanted, expected in ((None, 1.0), (0.0, 0.0), (2.5, 2.5)):
        options = {"num_layers": 2}
        start = study(layer=layer, forget_bias=wanted, layer_options=options).initial_parameters(0, task)
        for k in range(2):
            bias = start[f"layer.bias_l{k}"]
            assert bias[8:16].eq(expected).all()
            assert bias[:8].eq(0).all()
            assert bias[16:].eq(0).all()
        weights = study(layer=layer, layer_options=options).initial_parameters(0, task)["layer.weight_hh_l0"]
        assert torch.equal(start["layer.weight_hh_l0"], weights)


@pytest.fixture(scope="module")
def phase(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("phase")
    source = write_gesture_phase(root / "source")
    shorten(source / "a2_raw.csv", 9)
    shorten(source / "b1_raw.csv", 17)
    prepare_surgical(source, root / "data")
    return root / "data"


@pytest.mark.parametrize("settings", [{}, {"truncate": 9}, {"checkpoint_segments": 3}], ids=str)
@pytest.mark.parametrize("layer", list(LAYERS))
def test_wrapped_recordings_are_trained_on_from_a_fresh_state_each_time(
    layer: str, settings: dict[str, Any], phase: Path
) -> None:
    own = make_task("surgical", {"user": "c", "wrap": True}, data=phase)
    options = {"clockwork": {"periods": 4}, "mist": {"delays": 4}, "narx": {"delays": 3}}.get(layer, {})
    chosen = study(
        task="surgical",
        task_settings={"user": "c", "wrap": True},
        layer=layer,
        layer_options=options,
        batch_size=4,
        **settings,
    )
    group = Group(chosen, own, [0, 3], CPU)
    index = group._next_index()
    inputs, targets = own.batch("train", index, torch.float64)
    resets = own.resets("train", index)
    gradients, losses = group._gradients(inputs, targets, None, *group._mask_keys(None), resets)
    for trial in range(2):
        model = chosen.model(own)
        model.load_state_dict(chosen.initial_parameters([0, 3][trial], own))
        longest = int(own.lengths("train", index[trial]).max())
        total, count = torch.zeros((), dtype=torch.float64), 0
        for recording in index[trial]:
            frames, labels = own.batch("val", recording.view(1), torch.float64)  # not wrapped
            length, left = int(own.lengths("val", recording)), longest
            while left:
                part = min(length, left)
                scores = model(frames[:part])[0][:, 0]
                total = total + torch.nn.functional.cross_entropy(scores, labels[:part, 0], reduction="sum")
                count, left = count + part, left - part
        expected = 4 * total / count
        torch.testing.assert_close(losses[trial], expected.detach())
        if "truncate" not in settings:
            found = torch.autograd.grad(expected, list(model.parameters()))
            for (name, _), value in zip(model.named_parameters(), found, strict=True):
                torch.testing.assert_close(gradients[name][trial], value, rtol=1e-9, atol=1e-12)


def test_wrapped_recordings_are_refused_with_several_processes(phase: Path) -> None:
    own = make_task("surgical", {"user": "c", "wrap": True}, data=phase)
    chosen = study(task="surgical", task_settings={"user": "c", "wrap": True}, batch_size=4)
    with pytest.raises(UsageError, match="expected one process with wrapped sequences"):
        Group(chosen, own, [0], CPU, Processes(0, 2))


def test_severed_weights_stay_severed_when_drawn_uniformly(task: Task) -> None:
    settings = study(layer="clockwork", hidden=8, initialization="uniform")
    drawn, normal = (s.initial_parameters(0, task)["layer.weight_hh_l0"] for s in (settings, study(layer="clockwork")))
    assert torch.equal(drawn == 0, normal == 0)
    assert (drawn == 0).any()


def test_groups_read_themselves_with_larger_weights(task: Task) -> None:
    options = {"layer": "clockwork", "hidden": 12, "layer_options": {"periods": 4}}
    larger, normal = (
        study(**options, initialization=kind).initial_parameters(0, task)["layer.weight_hh_l0"]
        for kind in ("groups", "normal")
    )
    own = torch.block_diag(*[torch.ones(3, 3)] * 4).bool()
    torch.testing.assert_close(larger[own], 2 * normal[own])
    assert torch.equal(larger[~own], normal[~own])


MASKED: dict[str, dict[str, Any]] = {
    "zoneout": {"layer_options": {"zoneout": 0.2}},
    "recurrent_dropout": {"layer_options": {"recurrent_dropout": 0.3}},
    "dropout": {"layer_options": {"dropout": 0.4, "num_layers": 2}},
    "readout_dropout": {"readout_dropout": 0.5},
    "layer_norm": {"layer_options": {"layer_norm": True}},
    "everything": {
        "layer_options": {
            "zoneout": 0.2,
            "recurrent_dropout": 0.3,
            "dropout": 0.4,
            "num_layers": 2,
            "layer_norm": True,
        },
        "readout_dropout": 0.5,
    },
    "in two directions": {
        "layer_options": {"zoneout": 0.2, "recurrent_dropout": 0.3, "bidirectional": True},
        "readout_dropout": 0.5,
    },
    "truncated": {"layer_options": {"zoneout": 0.2, "recurrent_dropout": 0.3}, "truncate": 5},
    "recomputed": {"layer_options": {"zoneout": 0.2, "recurrent_dropout": 0.3}, "checkpoint_segments": 3},
}


@pytest.mark.parametrize("settings", MASKED.values(), ids=MASKED)
@pytest.mark.parametrize("layer", list(LAYERS))
def test_trial_with_options_in_a_sweep_equals_the_trial_alone(task: Task, layer: str, settings: dict[str, Any]) -> None:
    options = {"clockwork": {"periods": 4}, "mist": {"delays": [1, 3, 7]}, "narx": {"delays": [1, 5]}}.get(layer, {})
    options = {**options, **settings.get("layer_options", {})}
    chosen = study(**{**settings, "layer": layer, "layer_options": options, "learning_rate": 0.03})
    many, one = (Group(chosen, task, trials, CPU) for trials in ([2, 0, 1, 3], [1]))
    for _ in range(6):
        many.advance()
        one.advance()
    close(of_trial(many, 1), of_trial(one, 1))
    torch.testing.assert_close(many.evaluate(many.parameters, "val")[2], one.evaluate(one.parameters, "val")[0])


@pytest.mark.parametrize("name", ["zoneout", "recurrent_dropout", "dropout", "readout_dropout"])
def test_masks_change_from_trial_to_trial_and_step_to_step(task: Task, name: str) -> None:
    chosen = study(**MASKED[name])
    group = Group(chosen, task, [0, 1], CPU)
    seen = []
    for _ in range(2):
        keys, places = group._mask_keys(None)
        seen += TrialMasks(group._draws, keys, places, 10).piece(0, 12)[0].unbind(0)
        group.advance()
    share = seen[0].double().mean().item()
    assert share == pytest.approx(group._draws[0].probability, abs=0.2)
    assert all(not torch.equal(a, b) for k, a in enumerate(seen) for b in seen[:k])


def test_masks_change_the_training_and_not_the_evaluation(task: Task) -> None:
    without = of_trial(trained(study(), task, [1]), 1)
    for name in ("zoneout", "recurrent_dropout", "readout_dropout"):
        group = trained(study(**MASKED[name]), task, [1])
        assert not torch.equal(of_trial(group, 1)["readout.weight"], without["readout.weight"])
        assert group.evaluate(group.parameters, "val") == group.evaluate(group.parameters, "val")
    dropped = Group(study(readout_dropout=0.9), task, [0], CPU)
    assert dropped.evaluate(dropped.parameters, "val") == Group(study(), task, [0], CPU).evaluate(
        dropped.parameters, "val"
    )


@pytest.mark.parametrize("name", ["hapt", "hapt-frames"])
def test_masks_do_not_depend_on_the_padding_of_other_trials(name: str, recordings: dict[str, Task]) -> None:
    own = recordings[name]
    options = {"zoneout": 0.2, "recurrent_dropout": 0.3, "num_layers": 2, "dropout": 0.2}
    chosen = study(
        task=name, task_settings={}, layer="lstm", trials=4, batch_size=2, layer_options=options, readout_dropout=0.5
    )
    many, one = (Group(chosen, own, trials, CPU) for trials in ([0, 1, 2, 3], [2]))
    for _ in range(3):
        many.advance()
        one.advance()
    close(of_trial(many, 2), of_trial(one, 2), 1e-9)
