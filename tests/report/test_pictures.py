"""Pictures: all three files, the same bytes for the same data, and a clear word when there is nothing to draw."""

import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest
import torch
from matplotlib.axes import Axes

from mistrnn.errors import UsageError
from mistrnn.report import (
    Norms,
    draw_attention,
    draw_confusion,
    draw_figure1,
    draw_gradients,
    draw_over_time,
    draw_weight_gradients,
    predictions,
)
from mistrnn.tasks import IGNORED, make_task
from mistrnn.tasks.hapt import prepare_hapt
from mistrnn.training import Study
from tests.tasks.recorded_files import write_hapt

PNG = b"\x89PNG"


def test_figure1_is_drawn_the_same_each_time(tmp_path: Path) -> None:
    first, second = (draw_figure1(tmp_path / name) for name in ("a", "b"))
    assert [path.name for path in first] == ["figure1.svg", "figure1.png", "figure1.csv"]
    for one, other in zip(first, second, strict=True):
        assert one.read_bytes() == other.read_bytes()
    words = "".join(ET.parse(first[0]).getroot().itertext())
    for expected in (
        "Simple RNN: 21 edges",
        "Simple NARX RNN, 2 delays: 11 edges",
        "exponential delays (MIST): 3 edges",
    ):
        assert expected in words
    assert first[1].read_bytes().startswith(PNG)
    assert first[2].read_text().splitlines()[0] == "architecture,what,through,from,to"


def test_gradients_name_how_far_each_line_reaches(tmp_path: Path) -> None:
    lines = [Norms("first", "a", [1.0, 0.5, 0.001]), Norms("second", "b", [1.0, 0.5, 0.02], [[1.0, 0.4, 0.03]])]
    svg, png, table = draw_gradients(lines, tmp_path, "norms", title="<b>a title</b> & more")
    words = "".join(ET.parse(svg).getroot().itertext())
    assert "first: 1% up to τ = 1" in words
    assert "second: 1% up to τ = 2" in words
    assert "<b>a title</b> & more" in words
    assert png.read_bytes().startswith(PNG)
    assert table.read_text() == "tau,a,b\n0,1.0,1.0\n1,0.5,0.5\n2,0.001,0.02\n"


def test_weight_gradients_are_drawn_by_parameter_gate_and_model(tmp_path: Path) -> None:
    norms = {"weight_ih_l0 i": [1.0, 0.5], "weight_ih_l0 f": [0.1, 0.2], "bias_l0": [0.3, 0.0]}
    models = {"untrained": norms, "after 3 steps": {name: values[:1] for name, values in norms.items()}}
    svg, png, table = draw_weight_gradients(models, tmp_path, "weights", title="a title")
    words = "".join(ET.parse(svg).getroot().itertext())
    for expected in (
        "a title",
        "weight_ih_l0, untrained",
        "bias_l0, after 3 steps",
        "norm of the gradient's component",
    ):
        assert expected in words
    assert png.read_bytes().startswith(PNG)
    header, *rows = table.read_text().splitlines()
    assert header.startswith('tau,"weight_ih_l0 i, untrained","weight_ih_l0 f, untrained","bias_l0, untrained"')
    assert rows == ["0,1.0,0.1,0.3,1.0,0.1,0.3", "1,0.5,0.2,0.0,,,"]


@pytest.mark.parametrize("values", [[0.0, 0.0], [1.0, float("inf")]])
def test_weight_gradients_without_anything_to_draw_are_refused(tmp_path: Path, values: list[float]) -> None:
    with pytest.raises(UsageError, match="there is no gradient to draw: all components are zero, or some are infinite"):
        draw_weight_gradients({"untrained": {"bias_l0": values}}, tmp_path, "weights", title="")


def test_no_line_is_left_out_however_many_there_are(tmp_path: Path) -> None:
    lines = [Norms(f"after {k} steps", f"step_{k}", [1.0, 0.1 * k]) for k in range(1, 12)]
    svg, _, table = draw_gradients(lines, tmp_path, "norms", title="")
    words = "".join(ET.parse(svg).getroot().itertext())
    assert all(f"after {k} steps" in words for k in range(1, 12))
    assert table.read_text().splitlines()[0].endswith("step_11")


@pytest.mark.parametrize("value", [0.0, float("nan"), float("inf")])
def test_gradients_that_are_none_are_said(tmp_path: Path, value: float) -> None:
    with pytest.raises(UsageError, match="there is no gradient to draw"):
        draw_gradients([Norms("a", "a", [value, value])], tmp_path, "norms", title="")


def test_attention_has_a_row_for_each_step(tmp_path: Path) -> None:
    mixture = torch.softmax(torch.randn(7, 3, 2, generator=torch.Generator().manual_seed(0)), -1)
    files = draw_attention(mixture, (1, 8), tmp_path, title="a mixture")
    header, *rows = files[2].read_text().splitlines()
    assert header == "step,delay_1_mean,delay_8_mean,delay_1_std,delay_8_std"
    assert len(rows) == 7
    assert float(rows[2].split(",")[2]) == pytest.approx(mixture[2, :, 1].mean().item(), abs=1e-6)


def test_attention_leaves_the_padding_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mixture = torch.softmax(torch.randn(7, 3, 2, generator=torch.Generator().manual_seed(0)), -1)
    lengths = torch.tensor([2, 5, 4])
    drawn: dict[str, list[Any]] = {"imshow": [], "scatter": []}
    for name, calls in drawn.items():
        original = getattr(Axes, name)

        def noted(self: Axes, *given: Any, original: Any = original, calls: Any = calls, **options: Any) -> Any:
            calls.append(given[0])
            return original(self, *given, **options)

        monkeypatch.setattr(Axes, name, noted)
    files = draw_attention(mixture, (1, 8), tmp_path, title="a mixture", lengths=lengths)
    _, *rows = files[2].read_text().splitlines()
    assert len(rows) == 5  # as many steps as the longest has
    means = torch.stack([torch.stack([mixture[t, b] for b in range(3) if t < lengths[b]]).mean(0) for t in range(5)])
    values = torch.tensor([[float(value) for value in row.split(",")[1:]] for row in rows])
    torch.testing.assert_close(values[:, :2], means)
    torch.testing.assert_close(values[4, 2:], torch.zeros(2))  # one sequence is left, which differs from nobody
    spread = torch.stack([mixture[3, 1], mixture[3, 2]]).std(0, correction=0)
    torch.testing.assert_close(values[3, 2:], spread)
    (image,), (of_examples, of_all) = drawn["imshow"], drawn["scatter"]
    torch.testing.assert_close(torch.from_numpy(image).float(), means.T)
    real = [mixture[:length, b] for b, length in enumerate(lengths.tolist())]
    torch.testing.assert_close(torch.from_numpy(of_examples).float(), torch.stack([one.mean(0) for one in real]))
    torch.testing.assert_close(torch.from_numpy(of_all).float(), torch.cat(real).mean(0))


@pytest.mark.parametrize("lengths", [[2, 5], [2, 8, 3], [2, 0, 3]])
def test_attention_with_impossible_lengths_is_refused(tmp_path: Path, lengths: list[int]) -> None:
    with pytest.raises(ValueError, match="draw_attention: expected a length from 1 to 7 for each of 3 sequences, got"):
        draw_attention(torch.ones(7, 3, 2) / 2, (1, 8), tmp_path, title="", lengths=torch.tensor(lengths))


def test_predictions_are_counted_and_drawn(tmp_path: Path) -> None:
    source = write_hapt(tmp_path / "source")
    prepare_hapt(source, tmp_path / "frames", frames=True)
    task = make_task("hapt-frames", data=tmp_path / "frames")
    model = Study(task="hapt-frames", layer="gru", hidden=4).model(task).eval()
    counts, truth, found = predictions(model, task)
    wrong = total = 0
    for k in range(task.sizes["test"]):
        inputs, targets = task.batch("test", torch.tensor([k]))
        with torch.no_grad():
            wrong += int(task.errors(model(inputs)[0], targets))
        total += int(task.count(targets))
    assert int(counts.sum()) == total
    assert total - int(counts.diagonal().sum()) == wrong
    files = draw_confusion(counts, task.classes, tmp_path, title="a <title>")
    assert files[2].read_text().splitlines()[0] == "true,WALKING,SITTING,LAYING"
    files = draw_over_time(truth, found, task.classes, tmp_path, title="over time")
    lines = files[2].read_text().splitlines()
    assert lines[0] == "step,true,predicted"
    assert len(lines) - 1 == int((truth != IGNORED).sum()) == 36


def test_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match=r"cannot write to the folder .*file/inside: Not a directory"):
        draw_figure1(tmp_path / "file" / "inside")


def test_pictures_take_the_place_of_earlier_ones_and_of_nothing_else(tmp_path: Path) -> None:
    for name, text in (("figure1.csv", "id,label\n"), ("figure1.png", "mine")):
        (tmp_path / name).write_text(text)
        with pytest.raises(UsageError, match=rf"{name}: there is a file already that `mist` has not written"):
            draw_figure1(tmp_path)
        assert [path.read_text() for path in tmp_path.iterdir()] == [text]
        (tmp_path / name).unlink()
