"""The README's Python examples run, from top to bottom, as a reader would paste them."""

import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from mistrnn import LSTM, MIST, count_parameters, match_parameters
from mistrnn.estimators.network import layer_arguments
from tests.tolerance import relative_error

README = (Path(__file__).parents[1] / "README.md").read_text()


def test_readme_examples_run() -> None:
    blocks = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
    assert len(blocks) >= 6
    names: dict[str, Any] = {}
    for block in blocks:
        exec(compile(block, "README.md", "exec"), names)
    assert names["output"].shape == (1, 64)
    assert names["outputs"].shape == (5, 20, 8, 16)
    assert isinstance(names["theirs"], torch.nn.LSTM)


def test_readme_numbers_are_right() -> None:
    assert "output_size=10)  # 41,810\n" in README
    assert "output_size=10)  # 139 units\n" in README
    assert count_parameters("lstm", 100, input_size=1, output_size=10) == 41_810
    assert match_parameters("mist", 41_810, input_size=1, output_size=10) == 139


def test_examples_of_the_analysis_run_and_say_what_comes_out() -> None:
    text = (Path(__file__).parents[1] / "docs" / "analysis.md").read_text()
    names: dict[str, Any] = {"torch": torch}
    blocks = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    assert len(blocks) == 5
    for block in blocks:
        exec(compile(block, "analysis.md", "exec"), names)
    assert names["shortest"].edges == 1
    assert names["shortest_path"]([1, 2, 4, 8, 16], 21) == [-21, -20, -16, 0]
    assert round(float(names["log10_path_counts"]([1, 2, 4, 8, 16], 100)[100]), 1) == 24.5
    lengths = names["shortest_path_lengths"]
    for horizon, count, ours, powers in ((100, 5, 5, 9), (784, 8, 6, 12)):
        assert lengths(names["suggest_delays"](horizon, count), horizon).max() == ours
        assert lengths([2**k for k in range(count)], horizon).max() == powers
    assert names["mixture"].shape == (1, 20, 4, 4)


@pytest.fixture
def layer_of_the_guide(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The class MGU, from the guide's two files in a folder of the layers that is not on disk."""
    guide = (Path(__file__).parents[1] / "docs" / "adding-a-layer.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", guide, flags=re.DOTALL)
    monkeypatch.setitem(sys.modules, "mistrnn.layers.mgu", ModuleType("mistrnn.layers.mgu"))
    for file, block in zip(("reference", "layer"), blocks, strict=True):
        module = ModuleType(f"mistrnn.layers.mgu.{file}")
        exec(compile(block, "adding-a-layer.md", "exec"), vars(module))
        monkeypatch.setitem(sys.modules, module.__name__, module)
    return vars(module)["MGU"]


def test_layer_of_the_guide_keeps_the_laws(layer_of_the_guide: Any) -> None:
    torch.manual_seed(0)
    layer = layer_of_the_guide(3, 5, 2, zoneout=0.1, layer_norm=True).double().eval()
    input, reset = torch.randn(12, 2, 3, dtype=torch.float64), torch.rand(12, 2) < 0.2
    whole, whole_state = layer(input, reset=reset)
    first, state = layer(input[:3], reset=reset[:3])
    second, state = layer(input[3:], state, reset=reset[3:])
    torch.testing.assert_close(torch.cat([first, second]), whole)
    torch.testing.assert_close(state, whole_state)
    stream = layer.stream(2)
    torch.testing.assert_close(torch.stack([stream(x, r) for x, r in zip(input, reset, strict=True)]), whole)


def test_layer_of_the_guide_is_made_as_those_of_torch(layer_of_the_guide: Any) -> None:
    by_position = layer_of_the_guide(3, 8, 2, False, True, 0.5, True, delay=2)
    assert repr(by_position) == "MGU(3, 8, num_layers=2, bias=False, batch_first=True, dropout=0.5, bidirectional=True)"
    with pytest.raises(TypeError, match="positional arguments"):
        layer_of_the_guide(3, 8, 2, False, True, 0.5, True, 0)
    with pytest.raises(ValueError, match=r"^MGU: expected delay >= 1, got 0\.$"):
        layer_of_the_guide(3, 8, delay=0)
    assert layer_arguments(by_position)["delay"] == 2
    assert layer_arguments(by_position).keys() == {*layer_arguments(LSTM(3, 8)), "delay"}
    skipped = torch.nn.utils.skip_init(layer_of_the_guide, 3, 8)
    assert skipped(torch.zeros(2, 1, 3))[0].shape == (2, 1, 8)


def test_examples_of_the_estimators_run() -> None:
    text = (Path(__file__).parents[1] / "docs" / "estimators.md").read_text()
    names: dict[str, Any] = {}
    blocks = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    assert len(blocks) == 7
    for block in blocks:
        exec(compile(block, "estimators.md", "exec"), names)
    assert len(names["losses"]) == 3
    assert len(names["tuned"].network_.networks) == 2
    assert names["page"].name == "report.html"
    assert names["accuracies"].mean() > 0.9
    assert names["answer"].label == "early high"
    assert (names["again"].predict(names["X"]) == names["model"].predict(names["X"])).all()


def test_a_trials_model_is_loaded_as_the_protocol_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (Path(__file__).parents[1] / "docs" / "protocol.md").read_text()
    (block,) = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec(compile(block, "protocol.md", "exec"), names)
    assert names["scores"].shape[:2] == names["inputs"].shape[:2]
    assert (tmp_path / "my-study" / "trials.jsonl").exists()


def recipe_for_long_sequences() -> dict[str, Any]:
    text = (Path(__file__).parents[1] / "docs" / "long-sequences.md").read_text()
    (block,) = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    names: dict[str, Any] = {}
    exec(compile(block, "long-sequences.md", "exec"), names)
    assert all(parameter.grad is not None for parameter in names["layer"].parameters())
    return names


@pytest.mark.parametrize("form", ["fused", "plain"])
@pytest.mark.parametrize("kind", [MIST, LSTM])
def test_recipe_for_long_sequences_gives_the_gradients_of_the_whole_run(kind: Any, form: Any) -> None:
    recipe = recipe_for_long_sequences()
    recipe["layer"] = layer = kind(3, 16, num_layers=2, dtype=torch.float64)
    layer.form = form
    readout = recipe["readout"].double()
    inputs = torch.randn(50, 2, 3, dtype=torch.float64, requires_grad=True)
    targets = torch.randint(5, (50, 2))
    wanted = [inputs, *layer.parameters(), *readout.parameters()]
    whole, in_chunks = recipe["loss_of_chunk"](inputs, targets, None)[0], recipe["loss_of_all"](inputs, targets, 7)
    assert relative_error(in_chunks, whole) < 1e-12
    for found, expected in zip(torch.autograd.grad(in_chunks, wanted), torch.autograd.grad(whole, wanted), strict=True):
        assert relative_error(found, expected) < 1e-12


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="measured through Linux's /proc")
def test_recipe_for_long_sequences_saves_memory() -> None:
    """Measured in a process of its own as the growth of the peak resident size."""
    script = """
import torch
from tests.test_readme import recipe_for_long_sequences
torch.set_num_threads(1)
recipe = recipe_for_long_sequences()
inputs, targets = torch.randn(50_000, 16, 3), torch.randint(5, (50_000, 16))

def size(name):
    return int(next(line for line in open("/proc/self/status") if line.startswith(name)).split()[1])

def growth(length):
    open("/proc/self/clear_refs", "w").write("5")  # forget earlier peaks
    before = size("VmRSS")
    recipe["loss_of_all"](inputs, targets, length).backward()
    return size("VmHWM") - before

in_chunks = growth(500)
print(growth(50_000) / in_chunks)
"""
    root = Path(__file__).parents[1]
    done = subprocess.run([sys.executable, "-c", script], cwd=root, capture_output=True, text=True, check=True)
    assert float(done.stdout) > 3
