"""Every task keeps the same contract: shapes, seeds, splits, losses, and what a trivial predictor scores."""

from pathlib import Path
from typing import Any

import pytest
import torch

from mistrnn.tasks import IGNORED, SPLITS, TASKS, Task, make_task, timit
from mistrnn.tasks._recordings import RecordingTask
from mistrnn.tasks.hapt import prepare_hapt
from mistrnn.tasks.mobiact import prepare_mobiact
from mistrnn.tasks.surgical import prepare_surgical
from mistrnn.tasks.timit import prepare_timit
from tests.layers.cases import seeded
from tests.tasks.idx_files import write_mnist
from tests.tasks.own_recordings import OwnRecordings, write_folder
from tests.tasks.own_regression import OWN
from tests.tasks.recorded_files import TIMIT_TRAIN_SPEAKERS, write_gesture_phase, write_hapt, write_mobiact, write_timit

SETTINGS: dict[str, dict[str, Any]] = {
    "copy": {"delay": 100},
    "addition": {"length": 20},
    "pmnist": {"last_pixels": 50},
    "recordings": {"labels": "labels.csv"},
}
every_task = pytest.mark.parametrize("name", list(TASKS))


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The files of every task that reads some, small."""
    root = tmp_path_factory.mktemp("data")
    mnist = write_mnist(root / "mnist", train=200, test=50)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(timit, "TRAIN_SPEAKERS", TIMIT_TRAIN_SPEAKERS)
        prepare_timit(write_timit(root / "timit"), root / "timit-prepared")
    prepare_mobiact(write_mobiact(root / "mobiact"), root / "mobiact-prepared")
    hapt = write_hapt(root / "hapt")
    prepare_hapt(hapt, root / "hapt-prepared", frames=False)
    prepare_hapt(hapt, root / "hapt-frames-prepared", frames=True)
    prepare_surgical(write_gesture_phase(root / "surgical"), root / "surgical-prepared")
    recordings = write_folder(root / "recordings")
    return {"smnist": mnist, "pmnist": mnist, "recordings": recordings} | {
        name: root / f"{name}-prepared" for name in ("timit", "mobiact", "surgical", "hapt", "hapt-frames")
    }


def make(name: str, data: dict[str, Path], seed: int = 0) -> Task:
    return make_task(name, SETTINGS.get(name), seed=seed, data=data.get(name))


def lengths_differ(task: Task) -> bool:
    return type(task).lengths is not Task.lengths


@every_task
def test_batches_have_the_stated_shapes(name: str, data: dict[str, Path]) -> None:
    task = make(name, data)
    for split in SPLITS:
        for lead in ([], [3]):
            index = torch.randint(task.sizes[split], (*lead, 4))
            inputs, targets = task.batch(split, index, torch.float64)
            steps = inputs.size(-3)
            assert steps <= task.steps
            assert steps == task.steps or lengths_differ(task)
            assert inputs.shape == (*lead, steps, 4, task.input_size)
            assert targets.shape == ((*lead, steps, 4) if task.every_step else (*lead, 4))
            assert inputs.dtype == torch.float64
            assert inputs.isfinite().all()


@every_task
def test_lengths_are_the_steps_up_to_the_padding(name: str, data: dict[str, Path]) -> None:
    task = make(name, data)
    for split in SPLITS:
        for lead in ([], [3]):
            index = torch.randint(task.sizes[split], (*lead, 4))
            lengths = task.lengths(split, index)
            assert (lengths.shape, lengths.dtype, lengths.device) == (index.shape, torch.int64, index.device)
            for k, length in zip(index.flatten().tolist(), lengths.flatten().tolist(), strict=True):
                inputs, targets = task.batch(split, torch.tensor([k]))
                assert 1 <= length <= len(inputs) <= task.steps
                assert not inputs[length:].any()
                if isinstance(task, RecordingTask):
                    assert inputs[length - 1].any()  # the last frame of made recordings is not zero
                if lengths_differ(task):
                    assert (targets[length:] == IGNORED).all()
                else:
                    assert length == task.steps


@every_task
def test_trial_axis_only_stacks(name: str, data: dict[str, Path]) -> None:
    task = make(name, data)
    index = torch.randint(task.sizes["train"], (3, 4))
    inputs, targets = task.batch("train", index)
    for k in range(3):
        one_inputs, one_targets = task.batch("train", index[k])
        steps = len(one_inputs)  # alone it may be padded less
        assert torch.equal(inputs[k, :steps], one_inputs)
        assert not inputs[k, steps:].any()
        assert torch.equal(targets[k][:steps] if task.every_step else targets[k], one_targets)


@every_task
def test_same_seed_gives_the_same_data(name: str, data: dict[str, Path]) -> None:
    index = torch.arange(min(20, make(name, data).sizes["train"]))
    first, again = (make(name, data, seed=3).batch("train", index) for _ in range(2))
    assert torch.equal(first[0], again[0])
    assert torch.equal(first[1], again[1])
    if not TASKS[name].needs_data:
        assert not torch.equal(first[0], make(name, data, seed=4).batch("train", index)[0])


@every_task
def test_splits_have_no_sequence_in_common(name: str, data: dict[str, Path]) -> None:
    task = make(name, data)
    seen: list[set[bytes]] = []
    for split in SPLITS:
        size = min(task.sizes[split], 2000)
        sequences = [task.batch(split, torch.tensor([k]))[0] for k in range(size)]
        seen.append({sequence.contiguous().numpy().tobytes() for sequence in sequences})
        assert len(seen[-1]) == size
    if name == "surgical":
        assert seen[0] == seen[1]  # there is no validation set, and nothing is chosen by it
    else:
        assert not seen[0] & seen[1]
    assert not seen[0] & seen[2]
    assert not seen[1] & seen[2]


@every_task
def test_trivial_predictor_scores_what_the_task_says(name: str, data: dict[str, Path]) -> None:
    task = make(name, data)
    _, targets = task.batch("test", torch.arange(task.sizes["test"]))
    scores = task.trivial_output().expand(*targets.shape, task.output_size)
    error = (task.errors(scores, targets) / task.count(targets)).item()
    # What is counted is exact; the squared error of a sample of 1,000 scatters around its expectation.
    assert error == pytest.approx(task.trivial_error, rel=0.1 if targets.is_floating_point() else 1e-9)


@every_task
def test_loss_is_the_number_of_sequences_times_the_mean(name: str, data: dict[str, Path]) -> None:
    task = make(name, data)
    _, targets = task.batch("train", torch.arange(6) % task.sizes["train"])
    scores = torch.randn(*targets.shape, task.output_size, dtype=torch.float64)
    there = targets != IGNORED
    if targets.is_floating_point():  # whatever its error is: that of each target by itself
        alone = [(1,) * targets.dim(), (*(1,) * targets.dim(), task.output_size)]
        losses = [
            task.loss(s.view(alone[1]), t.view(alone[0])) for s, t in zip(scores[there], targets[there], strict=True)
        ]
        by_hand = 6 * torch.stack(losses).mean()
        if task.error_name == "squared error":
            torch.testing.assert_close(by_hand, 6 * (scores.squeeze(-1) - targets)[there].square().mean())
    else:
        chosen = torch.log_softmax(scores, -1)[there].gather(-1, targets[there].unsqueeze(-1))
        by_hand = -6 * chosen.mean()
    torch.testing.assert_close(task.loss(scores, targets), by_hand)
    parts = [
        task.loss(scores[..., part, :], targets[..., part], task.count(targets), sequences=6)
        for part in (slice(0, 4), slice(4, 6))
    ]
    torch.testing.assert_close(parts[0] + parts[1], by_hand)


@every_task
def test_perfect_scores_have_no_error(name: str, data: dict[str, Path]) -> None:
    task = make(name, data)
    _, targets = task.batch("val", torch.arange(4))
    if targets.is_floating_point():
        perfect = targets.unsqueeze(-1)
    else:
        perfect = torch.nn.functional.one_hot(targets.clamp_min(0), task.output_size)
    assert task.errors(perfect.double(), targets).item() == 0


@pytest.mark.parametrize("kind", [*OWN, OwnRecordings])
@pytest.mark.parametrize(
    "contract",
    [
        test_batches_have_the_stated_shapes,
        test_lengths_are_the_steps_up_to_the_padding,
        test_trial_axis_only_stacks,
        test_same_seed_gives_the_same_data,
        test_splits_have_no_sequence_in_common,
        test_trivial_predictor_scores_what_the_task_says,
        test_loss_is_the_number_of_sequences_times_the_mean,
        test_perfect_scores_have_no_error,
    ],
)
def test_a_task_of_ones_own_keeps_the_contract(kind: Any, contract: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TASKS, kind.name, kind)
    with seeded(0):
        contract(kind.name, {})


@pytest.mark.gpu
@every_task
def test_data_lives_on_the_device(name: str, data: dict[str, Path]) -> None:
    task = make(name, data).to("cuda")
    inputs, targets = task.batch("train", torch.arange(4, device="cuda"))
    assert inputs.is_cuda
    assert targets.is_cuda


def test_unknown_names_and_settings_are_refused_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"^expected a task among copy, addition, smnist, .*, got 'cpoy'\. One's own"):
        make_task("cpoy")
    with pytest.raises(
        ValueError, match=r"^copy: expected no data folder, because the task makes its own data, got x.$"
    ):
        make_task("copy", data="x")
    with pytest.raises(ValueError, match=r"^copy: expected no setting length, because the task's own are: delay.$"):
        make_task("copy", {"length": 3})
    with pytest.raises(ValueError, match=r"^pmnist: expected a data folder; give it with --data DIR, or get the files"):
        make_task("pmnist")
