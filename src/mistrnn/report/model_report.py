"""The report about a fitted estimator, as `model.report(X, y, folder)` writes it."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mistrnn.report.evaluation_folder import check_report_folder, save_evaluation
from mistrnn.report.model_evaluation import describe_estimator, evaluate_estimator, kind_of, title_of


def write_model_report(
    model: Any,
    cases: Sequence[Any],
    y: Any,
    folder: Path,
    *,
    groups: Sequence[Any] | None = None,
    ids: Sequence[str] | None = None,
    title: str | None = None,
    force: bool = False,
) -> Path:
    """Evaluate a fitted estimator on cases [channels, time], write the report, and return the path of its page."""
    check_report_folder(folder, force=force)
    kind = kind_of(model)
    labels = y.to_numpy() if hasattr(y, "iloc") else y  # a table of pandas would be gone through by columns
    over_time = kind == "numbers" or not model.network_.bidirectional
    evaluation = evaluate_estimator(model, kind, cases, labels, ids=ids, groups=groups, over_time=over_time)
    about = {**describe_estimator(model), "evaluated_on": f"{len(cases):,} cases given to `report`"}
    files = save_evaluation(
        evaluation,
        folder,
        title=title or f"{title_of(model)}: {len(cases):,} cases",
        about=about,
        history=model.history_,
        trials=getattr(model, "trials_", ()),
        force=force,
    )
    return files[0]
