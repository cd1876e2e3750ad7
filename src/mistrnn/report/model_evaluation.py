"""The evaluation of a fitted estimator on labelled cases, the same way for every caller.

Nothing here imports estimators: a model is anything with `predict`, `predict_proba` and `classes_` as in scikit-learn.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from mistrnn.errors import UsageError
from mistrnn.layers import layer_class
from mistrnn.report.evaluation import (
    TENTHS,
    UNLABELLED,
    Evaluation,
    evaluate_numbers,
    evaluate_recordings,
    evaluate_rows,
)
from mistrnn.tasks import is_missing

Kind = Literal["recordings", "rows", "numbers"]
"""A class for each case, a class for each frame, or a number for each case."""
NOT_SETTINGS = ("verbose", "log_dir", "search_dir", "engine", "callback", "layer", "hidden_size")
"""Arguments of an estimator that are no part of the model, or have a place of their own."""


def kind_of(model: Any) -> Kind:
    """Return a model's predictions."""
    if not hasattr(model, "classes_"):
        return "numbers"
    return "recordings" if hasattr(model, "predict_proba_at_every_step") else "rows"


def evaluate_estimator(
    model: Any,
    kind: Kind,
    X: Any,  # noqa: N803
    y: Any,
    *,
    ids: Sequence[str] | None = None,
    groups: Sequence[Any] | None = None,
    rows: Sequence[NDArray[np.int64]] | None = None,
    over_time: bool = True,
) -> Evaluation:
    """Compare the predictions of a fitted model with the truth.

    Args:
        model: a classifier of cases (`classes_`, `predict_proba`, and `predict_proba_at_every_step` if `over_time`), of
            frames (`classes_`, `predict_proba` -> [time, classes] for each case), or a regressor (`predict`).
        kind: which of them: "recordings", "rows" or "numbers".
        X: [cases, channels, time], or a list of arrays [channels, time].
        y: [cases] labels or numbers, or [time] labels for each case; None and NaN are frames without a label, as is
            `model.unlabeled` where the model has one. A class that the model does not know counts as an error.
        ids: [cases] names of the cases; their numbers from 0 if not given.
        groups: [cases] the group of each case, if there are groups.
        rows: [time] for each case: which row of its file a frame is, from 0.
        over_time: whether to evaluate shorter beginnings of the cases, too. A model that reads cases backwards cannot.
    """
    ids = [str(number) for number in range(len(X))] if ids is None else ids
    for name, values in (("y", y), ("ids", ids), ("groups", groups), ("rows", rows)):
        if values is not None and len(values) != len(X):
            raise UsageError(f"report: expected {name} for {len(X)} cases, as X has, got {len(values)}.")
    if not len(X):
        raise UsageError("report: expected at least one case to evaluate, got none.")
    owners = None if groups is None else [str(group) for group in groups]
    if kind == "numbers":
        return _numbers(model, X, y, ids, owners, over_time)
    classes: dict[Any, int] = {label: number for number, label in enumerate(model.classes_.tolist())}
    unlabeled = getattr(model, "unlabeled", None)
    if kind == "recordings":
        truth = _encoded(y, classes, None)
        if (truth == UNLABELLED).any():
            raise UsageError(
                f"report: expected a label for every case, got none for case {ids[int(truth.argmin())]!r}."
            )
        shares = model.predict_proba_at_every_step(X) if over_time else [one[None] for one in model.predict_proba(X)]
        return evaluate_recordings(ids, truth, shares, [str(label) for label in classes], owners)
    by_frame = [_encoded(one, classes, unlabeled) for one in y]
    shares = list(model.predict_proba(X))
    for own, codes, share in zip(ids, by_frame, shares, strict=True):
        if len(codes) != len(share):
            raise UsageError(f"report: expected {len(share)} labels for case {own!r}, one a frame, got {len(codes)}.")
    if not any((codes != UNLABELLED).any() for codes in by_frame):
        raise UsageError("report: expected labelled frames to evaluate, got only frames without a label.")
    places = [np.arange(len(codes)) for codes in by_frame] if rows is None else rows
    return evaluate_rows(ids, places, by_frame, shares, [str(label) for label in classes], owners)


def _encoded(labels: Any, classes: dict[Any, int], unlabeled: Any) -> NDArray[np.int64]:
    """Return labels as places in `classes`, to which labels that are new are added."""
    values = labels.tolist() if hasattr(labels, "tolist") else list(labels)
    codes = np.empty(len(values), dtype=np.int64)
    for k, label in enumerate(values):
        missing = is_missing(label) or (unlabeled is not None and label == unlabeled)
        codes[k] = UNLABELLED if missing else classes.setdefault(label, len(classes))
    return codes


def _numbers(
    model: Any, inputs: Any, y: Any, ids: Sequence[str], groups: Sequence[str] | None, over_time: bool
) -> Evaluation:
    truth, found = _one_number_each(y), _one_number_each(model.predict(inputs))
    early = {share: _one_number_each(model.predict(_beginnings(inputs, share))) for share in TENTHS[:-1] if over_time}
    return evaluate_numbers(ids, truth, found, {**early, TENTHS[-1]: found}, groups)


def _one_number_each(values: Any) -> NDArray[np.float64]:
    numbers = np.asarray(values, dtype=np.float64)
    if numbers.ndim > 1 and numbers.shape[1] > 1:
        raise UsageError(f"report: expected one number for each case, got {numbers.shape[1]}.")
    return numbers.reshape(-1)


def _beginnings(inputs: Any, share: float) -> Any:
    """Return the first share of each case."""
    if isinstance(inputs, np.ndarray):
        return inputs[..., : int(np.ceil(share * inputs.shape[-1]))]
    return [one[..., : int(np.ceil(share * one.shape[-1]))] for one in inputs]


def title_of(model: Any) -> str:
    """Return a fitted estimator in a few words."""
    kind = layer_class(model.layer) if isinstance(model.layer, str) else model.layer
    title = f"{kind.__name__}, {model.hidden_size} units"
    count = _network_count(model)
    title = title if count == 1 else f"{title}, mean of {count} networks"
    return f"{title}, and random convolutions" if getattr(model, "random_features", 0) else title


def _network_count(model: Any) -> int:
    return len(getattr(model.network_, "networks", [model.network_]))


def describe_estimator(model: Any) -> dict[str, Any]:
    """Return a fitted estimator in words and numbers, as the `about` of a report has it."""
    layer = model.layer if isinstance(model.layer, str) else model.layer.__name__
    settings = {name: _plain(value) for name, value in model.get_params().items() if name not in NOT_SETTINGS}
    if model.n_trials == 1:
        del settings["n_trials"], settings["n_best"]
    return {
        "estimator": type(model).__name__,
        "layer": layer,
        "hidden": model.hidden_size,
        "networks": _network_count(model),
        "weights": model.parameter_count(),
        "epochs": model.n_epochs_,
        "best_epoch": model.best_epoch_,
        "settings": settings,
    }


def _plain(value: Any) -> Any:
    """Return a setting as JSON has it."""
    if isinstance(value, Mapping):
        return {str(name): _plain(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)
