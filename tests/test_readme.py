"""The README's Python examples run, from top to bottom, as a reader would paste them."""

import re
from pathlib import Path
from typing import Any

import torch

from mistrnn import match_parameters

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
    assert "# 139, to match an LSTM with 100 units" in README
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


def test_layer_of_the_guide_keeps_the_laws() -> None:
    guide = (Path(__file__).parents[1] / "docs" / "adding-a-layer.md").read_text()
    names: dict[str, Any] = {}
    for block in re.findall(r"```python\n(.*?)```", guide, flags=re.DOTALL):
        exec(compile(block, "adding-a-layer.md", "exec"), names)
    layer = names["MGU"](3, 5, 2, zoneout=0.1, layer_norm=True).double().eval()
    input, reset = torch.randn(12, 2, 3, dtype=torch.float64), torch.rand(12, 2) < 0.2
    whole, whole_state = layer(input, reset=reset)
    first, state = layer(input[:3], reset=reset[:3])
    second, state = layer(input[3:], state, reset=reset[3:])
    torch.testing.assert_close(torch.cat([first, second]), whole)
    torch.testing.assert_close(state, whole_state)
    stream = layer.stream(2)
    torch.testing.assert_close(torch.stack([stream(x, r) for x, r in zip(input, reset, strict=True)]), whole)


def test_examples_of_the_estimators_run() -> None:
    text = (Path(__file__).parents[1] / "docs" / "estimators.md").read_text()
    names: dict[str, Any] = {}
    blocks = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    assert len(blocks) == 4
    for block in blocks:
        exec(compile(block, "estimators.md", "exec"), names)
    assert names["accuracies"].mean() > 0.9
    assert names["answer"].label == "early high"
    assert (names["again"].predict(names["X"]) == names["model"].predict(names["X"])).all()
