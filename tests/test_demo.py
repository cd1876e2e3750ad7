"""The demo, shortened: it runs, resumes, reports what it ran, and draws."""

from pathlib import Path

import pytest

from mistrnn import demo


def test_demo_compares_four_layers_and_draws(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("DELAY", 10), ("TRIALS", 2), ("STEPS", 4), ("BATCH", 5), ("LSTM_UNITS", 8)):
        monkeypatch.setattr(demo, name, value)
    steps: list[int] = []
    lines: list[str] = []
    rows, picture = demo.run_demo(
        tmp_path, say=lines.append, report=lambda progress: steps.append(progress.step), stop=lambda: False
    )
    assert [row["layer"] for row in rows] == ["MIST", "LSTM", "RNN", "Clockwork"]
    budget = rows[1]["parameters"]
    assert all(0.6 * budget < row["parameters"] <= budget for row in rows)
    assert steps == [1, 2, 3, 4] * 4
    assert len(lines) == 4
    assert picture.read_bytes().startswith(b"\x89PNG")
    steps.clear()
    again, _ = demo.run_demo(tmp_path, say=lines.append, report=lambda p: steps.append(p.step), stop=lambda: False)
    assert again == rows
    assert steps == []
