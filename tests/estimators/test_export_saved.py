"""Graphs of models that were saved: one layer alone, as in version 1, and several networks that answer as one."""

import json
from pathlib import Path

import numpy as np
import pytest

from mistrnn.estimators.export import export_onnx
from tests.estimators.make_saved import SAVED
from tests.estimators.test_export import TOLERANCE, fresh_state, session
from tests.estimators.test_saved_versions import KINDS


@pytest.mark.parametrize("name", ["version-1/classifier", "version-2/ensemble"])
def test_both_graphs_say_what_the_model_said(name: str, tmp_path: Path) -> None:
    folder = SAVED / name
    expected = json.loads((folder / "expected.json").read_text())
    model, x = KINDS[folder.name].from_pretrained(folder), np.array(expected["x"], dtype=np.float32)
    export_onnx(model, tmp_path / "model.onnx")
    (found,) = session(tmp_path / "model.onnx").run(None, {"x": x, "lengths": np.full(len(x), x.shape[2])})
    np.testing.assert_allclose(found, expected["found"], atol=TOLERANCE)
    export_onnx(model, tmp_path / "step.onnx", step=True)
    step = session(tmp_path / "step.onnx")
    state = fresh_state(step, len(x))
    assert list(state) == [value.name for value in step.get_inputs()[1:]]
    at_every_step = np.stack(model.predict_proba_at_every_step(x))
    for t in range(x.shape[2]):
        found, *after = step.run(None, {"x": x[:, :, t], **state})
        state = dict(zip(state, after, strict=True))
        np.testing.assert_allclose(found, at_every_step[:, t], atol=TOLERANCE)
    np.testing.assert_allclose(found, expected["found"], atol=TOLERANCE)
