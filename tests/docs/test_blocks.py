"""The Python blocks of README and docs run from top to bottom, as a reader would paste them."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from mistrnn import count_parameters, match_parameters
from tests.docs.pages import PAGES, blocks, names_after, page

TOLERANCE = 1e-5
"""Of graphs in onnxruntime against PyTorch."""


def check_readme(names: dict[str, Any]) -> None:
    assert names["output"].shape == (32, 64)
    assert names["answer"].label in ("walk", "sit")


def check_layers(names: dict[str, Any]) -> None:
    assert names["output"].shape == (1, 64)
    assert names["budget"] == 41_810
    assert names["outputs"].shape == (5, 20, 8, 16)
    assert names["model"]["encoder"](torch.zeros(4, 2, 3))[0].shape == (4, 2, 64)
    assert names["state"].h.shape == (4, 64)


def check_analysis(names: dict[str, Any]) -> None:
    assert names["shortest"].edges == 1
    assert names["shortest_path"]([1, 2, 4, 8, 16], 21) == [-21, -20, -16, 0]
    assert round(float(names["log10_path_counts"]([1, 2, 4, 8, 16], 100)[100]), 1) == 24.5
    lengths = names["shortest_path_lengths"]
    for horizon, count, ours, powers in ((100, 5, 5, 9), (784, 8, 6, 12)):
        assert lengths(names["suggest_delays"](horizon, count), horizon).max() == ours
        assert lengths([2**k for k in range(count)], horizon).max() == powers
    assert names["mixture"].shape == (1, 20, 4, 4)


def check_estimators(names: dict[str, Any]) -> None:
    assert len(names["losses"]) == 3
    assert len(names["tuned"].network_.networks) == 2
    assert names["page"].name == "report.html"
    assert names["accuracies"].mean() > 0.9
    assert names["answer"].label == "early high"
    assert (names["again"].predict(names["X"]) == names["model"].predict(names["X"])).all()


def check_protocol(names: dict[str, Any]) -> None:
    assert names["scores"].shape[:2] == names["inputs"].shape[:2]
    assert Path("my-study/trials.jsonl").exists()


def check_export(names: dict[str, Any]) -> None:
    model, first = names["model"], names["X"][:1]
    np.testing.assert_allclose(names["probabilities"], model.predict_proba(first), atol=TOLERANCE)
    assert names["label"] == model.predict(first)[0]
    assert names["scores"].shape == (2, 2)


def check_long_sequences(names: dict[str, Any]) -> None:
    assert all(parameter.grad is not None for parameter in names["layer"].parameters())


def check_adding_a_task(names: dict[str, Any]) -> None:
    assert [trial["status"] for trial in names["trials"]] == ["ok", "ok"]
    assert Path("runs/first-sign/trials.jsonl").exists()


CHECKS = {
    "README.md": check_readme,
    "docs/how-to/layers.md": check_layers,
    "docs/how-to/adding-a-task.md": check_adding_a_task,
    "docs/how-to/analysis.md": check_analysis,
    "docs/how-to/estimators.md": check_estimators,
    "docs/how-to/export.md": check_export,
    "docs/how-to/long-sequences.md": check_long_sequences,
    "docs/explanation/protocol.md": check_protocol,
}
"""What holds after the blocks of a page have run."""

ELSEWHERE = {
    "docs/how-to/adding-a-layer.md": "test_layer_guide.py, which puts its blocks into files",
}
"""Pages whose blocks do not run in one namespace."""


@pytest.mark.parametrize("name", [name for name in PAGES if blocks(name, "python") and name not in ELSEWHERE])
def test_python_blocks_of_a_page_run(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    names = names_after(name)
    CHECKS.get(name, lambda _: None)(names)


def test_checked_pages_have_python_blocks() -> None:
    assert [name for name in (*CHECKS, *ELSEWHERE) if not blocks(name, "python")] == []


def test_numbers_of_the_layers_are_right() -> None:
    text = page("docs/how-to/layers.md")
    assert "output_size=10)  # 41,810\n" in text
    assert "output_size=10)  # 139 units\n" in text
    assert count_parameters("lstm", 100, input_size=1, output_size=10) == 41_810
    assert match_parameters("mist", 41_810, input_size=1, output_size=10) == 139


def test_blocks_of_a_page_are_found_by_language_and_without_their_indentation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = [
        "```python",
        "a = 1",
        "```",
        "",
        "- item",
        "",
        "  ```python",
        "  if a:",
        "      b = 2",
        "  ```",
        "",
        "```",
        "mist",
    ]
    (tmp_path / "page.md").write_text("\n".join([*lines, "```", ""]))
    monkeypatch.setattr("tests.docs.pages.ROOT", tmp_path)
    assert blocks("page.md", "python") == ["a = 1\n", "if a:\n    b = 2\n"]
    assert blocks("page.md", "") == ["mist\n"]
    assert names_after("page.md")["b"] == 2
