"""Exported graphs give PyTorch's numbers: whole sequences, and one step at a time."""

import copy
import json
import os
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from sklearn.exceptions import NotFittedError

import mistrnn
from mistrnn import FrameLabeler, SequenceClassifier, SequenceRegressor
from mistrnn.errors import UsageError
from mistrnn.estimators.export import OPSET, export_onnx
from mistrnn.layers import LAYERS
from mistrnn.layers.rnn import RNN

CHANNELS = 2
TOLERANCE = 1e-5  # of float32 against float32, for predictions of the order of 1; 1.1e-6 is the most that was measured
KINDS = {"classifier": SequenceClassifier, "labeler": FrameLabeler, "regressor": SequenceRegressor}
SHORT = {"mist": {"delays": [1, 3, 7]}, "narx": {"delays": [2, 5]}, "clockwork": {"periods": [1, 3]}}
"""Options of each layer under which all of its past is read within few steps."""


@dataclass(frozen=True)
class Example:
    """An estimator to export; the step too, where there is one direction."""

    layer: str
    kind: str
    options: dict[str, Any] = field(default_factory=dict)
    parameters: dict[str, Any] = field(default_factory=dict)
    heavy_tails: bool = False
    """Whether a channel has an outlier, so that it is transformed by arcsinh."""

    def __str__(self) -> str:
        return "-".join([self.layer, self.kind, *self.options, *self.parameters, *["heavy_tails"] * self.heavy_tails])

    @property
    def has_step(self) -> bool:
        return not self.parameters.get("bidirectional")

    def fitted(self) -> Any:
        random = np.random.RandomState(1)
        x = measured(random, [9, 6, 8, 5, 9, 7])
        if self.heavy_tails:
            x[0][1, 0] = 1e4
        options = {**SHORT.get(self.layer, {}), **self.options}
        few = {"random_features": 168} if self.kind == "classifier" else {}
        parameters = {"num_layers": 1, "kernel_size": 4, "max_epochs": 1, **few, **self.parameters}
        model = KINDS[self.kind](
            layer=self.layer, hidden_size=6, layer_options=options, random_state=0, device="cpu", **parameters
        )
        if self.kind == "classifier":
            return model.fit(x, ["left", "right", "up", "up", "left", "right"])
        if self.kind == "labeler":
            return model.fit(x, [random.randint(5, 8, case.shape[1]) for case in x])
        return model.fit(x, 1000 + random.randn(6, 2))


EXAMPLES = [
    Example("clockwork", "regressor", {"zoneout": 0.2, "layer_norm": True}, {"pooling": "last+mean+max"}),
    Example("lstm", "labeler", {"zoneout": 0.3, "layer_norm": True}, {"bidirectional": True, "kernel_size": 1}),
    Example("gru", "classifier", heavy_tails=True),
]
SLOW_EXAMPLES = [
    Example("narx", "labeler", {"layer_norm": True}),
    Example("rnn", "classifier", {}, {"bidirectional": True, "pooling": "last", "random_features": 0}),
    Example("lstm", "labeler", {"zoneout": 0.3, "layer_norm": True}, {"num_layers": 2, "kernel_size": 1}),
    Example("gru", "regressor", {"layer_norm": True, "bias": False}, {"pooling": "max"}),
    Example("mist", "labeler", {"zoneout": 0.1, "layer_norm": True}, {"bidirectional": True}),
    Example("clockwork", "classifier", {"zoneout": 0.2}, {"bidirectional": True}),
    Example("rnn", "classifier", {}, {"n_trials": 2, "n_best": 2}),
]
PRODUCT = SLOW_EXAMPLES + [Example(layer, kind) for layer in LAYERS for kind in KINDS]


def measured(random: np.random.RandomState, lengths: Any) -> list[np.ndarray]:
    """Return cases [channels, time] with one channel far from zero."""
    offset = np.array([[1000.0], [0.0]])
    return [(random.randn(CHANNELS, length) + offset).astype(np.float32) for length in lengths]


def inputs(steps: int, batch: int) -> torch.Tensor:
    """Return a batch [T, B, C] of such cases."""
    cases = measured(np.random.RandomState(steps), [steps] * batch)
    return torch.from_numpy(np.stack(cases)).permute(2, 0, 1)


def padded(cases: list[np.ndarray], steps: int) -> dict[str, np.ndarray]:
    """Return the inputs of the graph of whole sequences; what lies past the lengths is poison."""
    x = np.full((len(cases), CHANNELS, steps), np.nan, dtype=np.float32)
    for number, case in enumerate(cases):
        x[number, :, : case.shape[1]] = case
    return {"x": x, "lengths": np.array([case.shape[1] for case in cases])}


def session(path: Path) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def expected(model: Any, cases: list[np.ndarray]) -> list[np.ndarray]:
    """Return PyTorch's own prediction of each case."""
    return list(model.predict(cases) if isinstance(model, SequenceRegressor) else model.predict_proba(cases))


def difference(model: Any, found: np.ndarray, wanted: np.ndarray) -> float:
    """Return the largest difference of predictions, where a prediction is of the order of 1."""
    assert found.shape == wanted.shape
    assert found.dtype == wanted.dtype
    scale = model.y_scale_ if isinstance(model, SequenceRegressor) else 1.0
    return float(np.abs((found - wanted) / scale).max())


def check_sequences(model: Any, graph: onnxruntime.InferenceSession) -> None:
    random = np.random.RandomState(2)
    seen = []
    for steps, lengths in ((1, [1]), (4, [4, 2]), (30, [30]), (21, [3, 21, 1, 14, 20]), (25, [7, 25 - 3])):
        cases = measured(random, lengths)
        (found,) = graph.run(None, padded(cases, steps))
        for number, wanted in enumerate(expected(model, cases)):
            row = found[number]
            if isinstance(model, FrameLabeler):
                assert not row[lengths[number] :].any()
                row = row[: lengths[number]]
            assert difference(model, row, wanted) < TOLERANCE
            seen.append(wanted.reshape(-1, wanted.shape[-1]))
    assert np.concatenate(seen).std(0).min() > 0.003  # otherwise nothing has been compared


def check_steps(model: Any, graph: onnxruntime.InferenceSession, sequences: onnxruntime.InferenceSession) -> None:
    random, batch, rows = np.random.RandomState(3), 3, 60
    cases = measured(random, [rows] * batch)
    state = fresh_state(graph, batch)
    found = []
    for t in range(rows):
        row = np.stack([case[:, t] for case in cases])
        prediction, *after = graph.run(None, {"x": row, **state})
        found.append(prediction)
        state = dict(zip(state, after, strict=True))
    network, x = model.network_, torch.from_numpy(np.stack(cases)).permute(2, 0, 1)
    with torch.no_grad():
        scores, (_, final) = network(x, every_step=True)[0], network(x)
    if isinstance(model, SequenceRegressor):
        wanted = scores.double().numpy() * model.y_scale_ + model.y_mean_
    else:
        wanted = scores.softmax(-1).numpy()
    assert difference(model, np.stack(found), wanted) < TOLERANCE
    for name, value in zip(state, final if isinstance(final, tuple) else (final,), strict=True):
        assert state[name].dtype == value.numpy().dtype
        assert np.abs(state[name] - value.numpy()).max() < TOLERANCE
    (whole,) = sequences.run(None, padded(cases, rows))
    last = whole[:, -1] if isinstance(model, FrameLabeler) else whole
    assert difference(model, found[-1], last) < TOLERANCE


def fresh_state(graph: onnxruntime.InferenceSession, batch: int) -> dict[str, np.ndarray]:
    """Return zeros as the metadata describe them."""
    about = json.loads(graph.get_modelmeta().custom_metadata_map["state"])
    return {
        name: np.zeros([batch if axis == "cases" else axis for axis in part["shape"]], part["dtype"])
        for name, part in about.items()
    }


def check_both(example: Example, folder: Path) -> None:
    model = example.fitted()
    export_onnx(model, folder / "model.onnx")
    onnx.checker.check_model(folder / "model.onnx", full_check=True)
    sequences = session(folder / "model.onnx")
    check_sequences(model, sequences)
    if example.has_step:
        export_onnx(model, folder / "step.onnx", step=True)
        onnx.checker.check_model(folder / "step.onnx", full_check=True)
        check_steps(model, session(folder / "step.onnx"), sequences)


@pytest.mark.parametrize("example", EXAMPLES, ids=str)
def test_both_graphs_equal_pytorch(example: Example, tmp_path: Path) -> None:
    check_both(example, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("example", PRODUCT, ids=str)
def test_both_graphs_equal_pytorch_for_every_layer_and_estimator(example: Example, tmp_path: Path) -> None:
    check_both(example, tmp_path)


@pytest.fixture(scope="module")
def classifier() -> Any:
    return Example("mist", "classifier", {}, {"num_layers": 2, "pooling": "mean+max"}).fitted()


STATE: dict[str, tuple[list[Any], str]] = {
    **{
        f"member0_block{number}_{name}": (shape, "tensor(float)")
        for number in range(2)
        for name, shape in (("conv", [3, "cases", 6]), ("h", [1, 7, "cases", 6]))
    },
    "member0_count": (["cases"], "tensor(int64)"),
    "member0_pooled_mean": (["cases", 6], "tensor(float)"),
    "member0_pooled_max": (["cases", 6], "tensor(float)"),
    "member1_recent": ([8, "cases", CHANNELS], "tensor(float)"),
    "member1_count": (["cases"], "tensor(int64)"),
    "member1_hits": (["cases", 168], "tensor(double)"),
}
DTYPES = {"tensor(float)": "float32", "tensor(double)": "float64", "tensor(int64)": "int64"}
"""The state of the classifier, in the order of its tensors."""


@pytest.fixture(scope="module")
def exported(classifier: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with both graphs of the classifier."""
    folder = tmp_path_factory.mktemp("exported")
    classifier.channel_names_ = ["höhe", "speed"]
    export_onnx(classifier, folder / "model.onnx")
    export_onnx(classifier, str(folder / "step.onnx"), step=True)
    return folder


def test_both_graphs_of_the_classifier_equal_pytorch(classifier: Any, exported: Path) -> None:
    sequences, one = session(exported / "model.onnx"), session(exported / "step.onnx")
    check_sequences(classifier, sequences)
    check_steps(classifier, one, sequences)


@pytest.mark.parametrize("name", ["model.onnx", "step.onnx"])
def test_metadata_say_what_a_program_needs(exported: Path, name: str) -> None:
    about = {key: json.loads(v) for key, v in session(exported / name).get_modelmeta().custom_metadata_map.items()}
    assert about.pop("graph") == ("step" if name == "step.onnx" else "sequence")
    if name == "step.onnx":
        assert about.pop("state") == {
            name: {"shape": shape, "dtype": DTYPES[kind]} for name, (shape, kind) in STATE.items()
        }
    assert about == {
        "kind": "SequenceClassifier",
        "classes": ["left", "right", "up"],
        "channels": ["höhe", "speed"],
        "mistrnn": mistrnn.__version__,
    }


def test_graphs_name_inputs_and_outputs_with_free_axes(exported: Path) -> None:
    def signature(values: Any) -> dict[str, tuple[list[Any], str]]:
        return {value.name: (value.shape, value.type) for value in values}

    whole, one = session(exported / "model.onnx"), session(exported / "step.onnx")
    assert signature(whole.get_inputs()) == {
        "x": (["cases", CHANNELS, "time"], "tensor(float)"),
        "lengths": (["cases"], "tensor(int64)"),
    }
    assert signature(whole.get_outputs()) == {"probabilities": (["cases", 3], "tensor(float)")}
    assert signature(one.get_inputs()) == {"x": (["cases", CHANNELS], "tensor(float)"), **STATE}
    after = {f"next_{name}": part for name, part in STATE.items()}
    assert signature(one.get_outputs()) == {"probabilities": (["cases", 3], "tensor(float)"), **after}


@pytest.mark.parametrize("name", ["model.onnx", "step.onnx"])
def test_graph_is_plain_onnx_that_tells_nothing_of_where_it_was_made(exported: Path, name: str) -> None:
    onnx.checker.check_model(exported / name, full_check=True)
    model = onnx.load(exported / name)
    assert [(opset.domain, opset.version) for opset in model.opset_import] == [("", OPSET)]
    assert not model.functions
    assert "zeros" in model.doc_string or name == "model.onnx"
    content = (exported / name).read_bytes()
    assert b".py" not in content
    assert os.fsencode(os.getcwd()) not in content
    assert b"stack_trace" not in content


def test_each_layer_is_one_scan_however_long_was_traced(exported: Path) -> None:
    nodes = [node.op_type for node in onnx.load(exported / "model.onnx").graph.node]
    assert nodes.count("Scan") == 2
    assert len(nodes) < 200


def test_export_leaves_the_estimator_as_it_was(classifier: Any, exported: Path) -> None:
    assert all(parameter.requires_grad for parameter in classifier.network_.parameters())
    assert exported.is_dir()


@pytest.fixture(scope="module")
def cheap() -> Any:
    """Return a classifier that is exported in a few seconds."""
    return Example("rnn", "classifier", {}, {"kernel_size": 1, "pooling": "last", "random_features": 0}).fitted()


def test_existing_file_is_kept_unless_forced(cheap: Any, tmp_path: Path) -> None:
    path, other = tmp_path / "step.onnx", tmp_path / "other.onnx"
    path.write_text("mine")
    with pytest.raises(UsageError, match=r"step\.onnx: there is such a file already"):
        export_onnx(cheap, path, step=True)
    assert path.read_text() == "mine"
    export_onnx(cheap, path, step=True, force=True)
    export_onnx(cheap, other, step=True)
    assert path.read_bytes() == other.read_bytes()  # the same model is the same file
    assert sorted(os.listdir(tmp_path)) == ["other.onnx", "step.onnx"]


def test_failed_writing_leaves_nothing(cheap: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*paths: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(UsageError, match=r"model\.onnx: cannot be written \(No space left on device\)"):
        export_onnx(cheap, tmp_path / "model.onnx", step=True)
    assert os.listdir(tmp_path) == []


def test_missing_folder_is_refused(classifier: Any, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"expected a folder to write to, and .*absent is none"):
        export_onnx(classifier, tmp_path / "absent" / "model.onnx")


def test_folder_in_place_of_a_file_is_refused(classifier: Any, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"expected the name of a file to write, such as model\.onnx, got a folder"):
        export_onnx(classifier, tmp_path, force=True)


def test_unfitted_estimator_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NotFittedError, match="SequenceClassifier instance is not fitted yet"):
        export_onnx(SequenceClassifier(), tmp_path / "model.onnx")


@pytest.mark.parametrize("package", ["onnx", "onnxscript"])
def test_missing_package_says_what_to_install(
    classifier: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, package: str
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(UsageError, match=rf"export to ONNX needs {package}: pip install 'mistrnn\[onnx\]'"):
        export_onnx(classifier, tmp_path / "model.onnx")


def test_step_of_two_directions_is_refused(tmp_path: Path) -> None:
    model = Example("lstm", "classifier", {}, {"bidirectional": True}).fitted()
    with pytest.raises(UsageError, match=r"second direction starts at the end of a case.*got LSTM with bidirectional"):
        export_onnx(model, tmp_path / "model.onnx", step=True)


def leaky_step(*arguments: Any) -> Any:
    step = RNN.cell.step(*arguments)
    return lambda x, past: (0.5 * past(1) + 0.5 * step(x, past)[0],)


class Leaky(RNN):
    """A user's layer with a step of its own."""

    cell = replace(RNN.cell, step=leaky_step)


class Doubled(RNN):
    """A user's layer with a forward of its own."""

    def forward(self, *given: Any, **options: Any) -> Any:
        output, state = super().forward(*given, **options)
        return 2 * output, state


def test_layer_with_a_step_of_its_own_is_exported(tmp_path: Path) -> None:
    cases = measured(np.random.RandomState(0), [9, 7])
    model = SequenceClassifier(layer=Leaky, hidden_size=6, num_layers=1, max_epochs=1, random_state=0, device="cpu")
    model.fit(cases, [0, 1])
    export_onnx(model, tmp_path / "model.onnx")
    check_sequences(model, session(tmp_path / "model.onnx"))


def test_layer_with_a_run_of_its_own_is_refused(tmp_path: Path) -> None:
    cases = measured(np.random.RandomState(0), [9, 7])
    model = SequenceClassifier(layer=Doubled, hidden_size=6, max_epochs=1, device="cpu").fit(cases, [0, 1])
    with pytest.raises(UsageError, match="got Doubled, which has a forward of its own"):
        export_onnx(model, tmp_path / "model.onnx")


def test_estimator_of_another_kind_is_refused(classifier: Any, tmp_path: Path) -> None:
    other = copy.copy(classifier)
    del other.classes_
    with pytest.raises(UsageError, match="expected a SequenceClassifier, FrameLabeler or SequenceRegressor"):
        export_onnx(other, tmp_path / "model.onnx")
