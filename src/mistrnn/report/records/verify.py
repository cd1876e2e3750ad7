"""Verify a folder of records: the studies in themselves, kept models by testing them again, and documents that cite them."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from mistrnn.errors import UsageError
from mistrnn.report.collected import Found, collect
from mistrnn.report.records.expressions import evaluate
from mistrnn.report.records.marks import framed, passages, rewritten, unmarked_tables
from mistrnn.tasks import Task, task_class
from mistrnn.training import Model, Recorded, study_task

EVALUATED = 250
"""Sequences tested at a time."""
TOLERANCE = {torch.float16: 2e-3, torch.float32: 2e-4, torch.float64: 2e-4}
"""Differences between recorded and recomputed test errors that rounding explains, of parameters and between machines."""


@dataclass
class Verification:
    """What was compared, what differs, and what could not be computed again."""

    studies: int = 0
    trials: int = 0
    models: int = 0
    passages: int = 0
    mistakes: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    """Numbers that cannot be computed again, with the reason."""
    without_data: dict[str, int] = field(default_factory=dict)
    """Kept models by the task whose files were not given."""
    rewritten: list[str] = field(default_factory=list)
    """Documents whose marked passages were written anew."""


def verify(results: Path, data: Path | None = None, *, write: bool = False) -> Verification:
    """Compare all records in a folder with themselves, and the documents about them with the records.

    The documents are those in the folder, and the README and docs/ of the folder above.

    Args:
        results: the folder of records.
        data: a folder with the prepared files of tasks, by the task's name; without it, models on such data are left out.
        write: write the passages that can be computed again into the documents, instead of comparing them.
    """
    if not results.is_dir():
        raise UsageError(f"{results}: expected a folder of records.")
    found = Verification()
    collected = collect([results])
    found.mistakes += collected.problems
    without_models: dict[str, int] = {}
    for study in collected.studies:
        found.studies += 1
        found.trials += len(study.trials)
        found.mistakes += [f"{study.name}: {text}" for text in _contradictions(study)]
        if not _kept(study):
            group = study.name.split("/")[0]
            without_models[group] = without_models.get(group, 0) + 1
        else:
            _test_again(study, data, found)
    found.left_out += [
        f"{group}: the test errors of {count} studies, whose parameters were not kept"
        for group, count in without_models.items()
    ]
    found.left_out += [
        f"the test errors of {count} kept models on {task}, without its files (--data FOLDER with a folder {task})"
        for task, count in found.without_data.items()
    ]
    for document in documents(results):
        _verify_document(document, results, found, write=write)
    return found


def documents(results: Path) -> list[Path]:
    """Return the documents about a folder of records."""
    above = results.absolute().parent
    own = sorted(results.absolute().rglob("*.md"))
    return [path for path in (above / "README.md",) if path.exists()] + sorted((above / "docs").rglob("*.md")) + own


def _contradictions(found: Found) -> list[str]:
    """Return where a study's trials contradict its settings or its curves."""
    mistakes = []
    curves = found.curves
    for trial in found.trials:
        number, study = trial["trial"], found.study
        if not math.isclose(trial["learning_rate"], study.learning_rate_of(number), rel_tol=1e-12):
            mistakes.append(f"trial {number}: the learning rate is not the one that follows from the seed")
        if not curves or trial["status"] == "crashed" or study.keep == "last" or not len(curves["trial"]):
            continue
        own = curves["trial"] == number
        errors, steps = curves["val_error"][own], curves["step"][own]
        if trial["val_error"] is None:
            continue
        lowest = float(errors.min()) if len(errors) else math.nan
        if lowest != trial["val_error"]:
            mistakes.append(f"trial {number}: val_error is {trial['val_error']}, and its curve's lowest {lowest}")
        elif int(steps[errors.argmin()]) != trial["best_step"]:
            mistakes.append(f"trial {number}: best_step is {trial['best_step']}, and its curve's another")
    return mistakes


def _kept(found: Found) -> list[int]:
    """Return the trials whose parameters are kept."""
    place = Path(found.folder)
    return [t["trial"] for t in found.trials if (place / "models" / f"trial-{t['trial']:03}.safetensors").exists()]


def _test_again(found: Found, data: Path | None, into: Verification) -> None:
    """Compute the test errors of kept models again."""
    kind = task_class(found.study.task)
    place = None if data is None else data / found.study.task
    if kind.needs_data and (place is None or not place.exists()):
        into.without_data[found.study.task] = into.without_data.get(found.study.task, 0) + len(_kept(found))
        return
    task, recorded = study_task(found.study, place), Recorded(found.folder)
    by_number = {trial["trial"]: trial for trial in found.trials}
    for number in _kept(found):
        stored = next(iter(recorded.tensors_of(number).values())).dtype
        again, then = tested(recorded.model(number, task).eval(), task), by_number[number]["test_error"]
        if not abs(again - then) <= TOLERANCE[stored]:
            into.mistakes.append(f"{found.name}, trial {number}: test_error is {then}, and its parameters have {again}")
        into.models += 1


@torch.no_grad()
def tested(model: Model, task: Task) -> float:
    """Return a model's error on the test set."""
    errors, count = torch.zeros(()).double(), torch.zeros(()).double()
    dtype = next(model.parameters()).dtype
    for index in torch.split(task.order("test"), EVALUATED):
        inputs, targets = task.batch("test", index, dtype)
        scores: Tensor = model(inputs)[0]
        errors += task.errors(scores, targets)
        count += task.count(targets)
    return float(errors / count)


def _verify_document(path: Path, results: Path, into: Verification, *, write: bool) -> None:
    """Compare the marked passages of a document, or write them."""
    document = path.read_text(encoding="utf-8")
    name = str(path.relative_to(results.absolute().parent))
    found = passages(document, name)
    texts: dict[int, str] = {}
    for passage in found:
        if passage.kind == "recorded":
            into.left_out.append(f"{name}, line {passage.line}: {passage.about}")
            continue
        into.passages += 1
        try:
            texts[passage.begin] = evaluate(passage.about, results)
        except UsageError as error:
            into.mistakes.append(f"{name}, line {passage.line}: {error}")
            continue
        if passage.text.strip() != texts[passage.begin] and not write:
            difference = _first_difference(passage.text.strip(), texts[passage.begin])
            into.mistakes.append(f"{name}, line {passage.line}: {passage.about}: {difference}")
    if not path.is_relative_to(results.absolute()):
        pass
    elif path.parent != results.absolute() and not any(path.parent.rglob("study.json")):
        into.left_out.append(f"{name}: no studies are recorded in its folder")
    else:
        into.mistakes += [
            f"{name}, line {line}: a table with numbers and no mark; use `recomputed` or `recorded`"
            for line in unmarked_tables(document, found)
        ]
    if write and texts:
        new = rewritten(document, found, lambda p: framed(p, texts[p.begin]) if p.begin in texts else p.text)
        if new != document:
            path.write_text(new, encoding="utf-8")
            into.rewritten.append(name)


def _first_difference(printed: str, computed: str) -> str:
    """Return the first line that differs."""
    pairs: Callable[[str], list[str]] = str.splitlines
    for there, here in zip(pairs(printed), pairs(computed), strict=False):
        if there.strip() != here:
            return f"the document has {there.strip()!r}, and the records give {here!r}"
    return f"the document has {len(pairs(printed))} lines, and the records give {len(pairs(computed))}"
