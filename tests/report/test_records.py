"""Records: marked passages, contradictions within studies, kept models, and the repository's own results."""

import functools
import importlib
import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from mistrnn.errors import UsageError
from mistrnn.report.records import keep_record, marks, verify
from mistrnn.report.records.expressions import EXPRESSIONS, evaluate
from mistrnn.training import Study, run_study
from tests.docs.pages import ROOT

RESULTS = ROOT / "results"
module = importlib.import_module("mistrnn.report.records.verify")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("studies") / "small"
    study = Study("copy", "rnn", 5, trials=3, steps=4, validate_every=2, batch_size=10, task_settings={"delay": 10})
    run_study(study, folder)
    return folder


@pytest.fixture
def results(trained: Path, tmp_path: Path) -> Path:
    keep_record(trained, tmp_path / "results" / "small", dtype="float32")
    return tmp_path / "results"


def test_results_of_the_repository_verify() -> None:
    found = verify(RESULTS)
    assert found.mistakes == []
    assert found.models >= 8
    assert found.passages >= 35
    assert any("table1" in text for text in found.left_out)


def test_every_expression_is_used_by_a_document() -> None:
    used = {
        p.about.split()[0] for path in module.documents(RESULTS) for p in marks.passages(path.read_text(), path.name)
    }
    assert set(EXPRESSIONS) <= used


def test_a_changed_digit_in_a_marked_number_of_readme_is_a_mistake(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("results", "benchmarks"):
        (tmp_path / name).symlink_to(ROOT / name)
    monkeypatch.setattr(module, "evaluate", functools.cache(evaluate))
    text = (ROOT / "README.md").read_text()
    digits = [
        place
        for passage in marks.passages(text, "README.md")
        for place in range(passage.begin, passage.end)
        if text[place].isdigit()
    ]
    assert len(digits) >= 18
    assert _mistakes(tmp_path, text) == []
    for place in digits:
        changed = text[:place] + str((int(text[place]) + 1) % 10) + text[place + 1 :]
        assert len(_mistakes(tmp_path, changed)) == 1


def _mistakes(folder: Path, text: str) -> list[str]:
    (folder / "README.md").write_text(text)
    found = module.Verification()
    module._verify_document(folder / "README.md", folder / "results", found, write=False)
    return list(found.mistakes)


def test_numbers_of_readme_table_are_marked() -> None:
    text = (ROOT / "README.md").read_text()
    begin = text.index("## Three numbers")
    rows = [line for line in text[begin : text.index("\n## ", begin + 5)].splitlines() if "](" in line and "|" in line]
    assert len(rows) == 3
    assert all("<!-- recomputed:" in row for row in rows)


def test_record_holds_the_parameters_of_the_top_trials(results: Path) -> None:
    found = verify(results)
    assert (found.studies, found.trials, found.models, found.mistakes) == (1, 3, 1, [])


def test_record_in_float16_verifies(trained: Path, tmp_path: Path) -> None:
    files = keep_record(trained, tmp_path / "results" / "small", top=2)
    assert {str(path.relative_to(tmp_path / "results" / "small")) for path in files} >= {"study.json", "trials.jsonl"}
    assert all(value.dtype == torch.float16 for value in load_file(files[-1]).values())
    found = verify(tmp_path / "results")
    assert (found.models, found.mistakes) == (2, [])


def test_changed_parameters_are_a_mistake(results: Path) -> None:
    (path,) = (results / "small" / "models").iterdir()
    save_file({name: -value for name, value in load_file(path).items()}, path)
    (mistake,) = verify(results).mistakes
    assert "test_error is" in mistake


@pytest.mark.parametrize(
    ("key", "value", "text"),
    [
        ("val_error", 0.01, "its curve's lowest"),
        ("learning_rate", 0.5, "does not|is not the one that follows from the seed"),
        ("best_step", 3, "its curve's another"),
    ],
)
def test_changed_trial_is_a_mistake(results: Path, key: str, value: float, text: str) -> None:
    path = results / "small" / "trials.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    lines[0][key] = value
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert any(part in mistake for mistake in verify(results).mistakes for part in text.split("|"))


def test_document_is_compared_and_written(results: Path) -> None:
    document = results / "small" / "README.md"
    document.write_text("Solved: <!-- recomputed: solved small -->5 of 5<!-- end -->\n")
    (mistake,) = verify(results).mistakes
    assert mistake.startswith(
        "results/small/README.md, line 1: solved small: the document has '5 of 5', and the records"
    )
    assert verify(results, write=True).rewritten == ["results/small/README.md"]
    assert verify(results).mistakes == []
    assert document.read_text() == "Solved: <!-- recomputed: solved small -->0 of 3 [0%, 56%]<!-- end -->\n"


def test_table_is_written_between_blank_lines_and_stays(results: Path) -> None:
    document = results / "small" / "README.md"
    document.write_text("<!-- recomputed: trials small -->\n\n<!-- end -->\n")
    verify(results, write=True)
    lines = document.read_text().splitlines()
    assert (lines[1], lines[-2], len(lines)) == ("", "", 9)
    assert verify(results, write=True).rewritten == []


def test_table_without_a_mark_is_a_mistake_and_a_recorded_one_is_named(results: Path) -> None:
    document = results / "small" / "README.md"
    document.write_text("text\n\n| a |\n| --- |\n| 1 |\n")
    assert verify(results).mistakes == [
        "results/small/README.md, line 3: a table with numbers and no mark; use `recomputed` or `recorded`"
    ]
    document.write_text("<!-- recorded: no data -->\n\n| a |\n| --- |\n| 1 |\n\n<!-- end -->\n")
    found = verify(results)
    assert (found.mistakes, found.left_out) == ([], ["results/small/README.md, line 1: no data"])


def test_kept_models_whose_data_is_absent_are_named(results: Path) -> None:
    path = results / "small" / "study.json"
    stored = json.loads(path.read_text())
    stored["settings"] |= {"task": "smnist", "task_settings": {}}
    path.write_text(json.dumps(stored))
    found = verify(results)
    assert found.mistakes == []
    assert found.left_out == [
        "the test errors of 1 kept models on smnist, without its files (--data FOLDER with a folder smnist)"
    ]


@pytest.mark.parametrize(
    ("document", "text"),
    [
        ("<!-- recomputed: best small -->1", "line 1: expected '<!-- end -->' after this mark"),
        ("<!-- recorded: a -->1 <!-- recorded: b -->2<!-- end -->", "line 1: expected '<!-- end -->' after this mark"),
        ("1\n<!-- end -->", "line 2: expected a mark before"),
    ],
)
def test_open_mark_is_refused(document: str, text: str) -> None:
    with pytest.raises(UsageError, match=text):
        marks.passages(document, "page.md")


def test_marks_in_code_are_no_marks() -> None:
    assert marks.passages("```\n<!-- recomputed: best small -->\n```\n", "page.md") == []


@pytest.mark.parametrize(
    ("expression", "text"),
    [
        ("", "expected an expression that begins with one of studies, trials"),
        ("mean small", "expected an expression that begins with one of studies, trials"),
        ("best 'small", "expected words"),
        ("best", "missing 1 required positional argument"),
        ("best large", "expected studies in large, got none"),
        ("studies small columns=layer,size", "expected columns among layer, .*, got 'size'"),
        ("estimate table3/x small", "expected table1, because"),
        ("estimate table1/mist-139 .", "expected rows among"),
        ("published table1/mist-1", "expected rows among"),
        ("cell nothing.md a b", "nothing.md: expected a document"),
        ("cell page.md x b", "expected a table with a row 'x' and a column 'b'"),
        ("lowest nothing.csv a", "expected rows with numbers in 'a'"),
        ("reaches small", "expected studies with gradient norms"),
    ],
)
def test_wrong_expression_is_refused(results: Path, expression: str, text: str) -> None:
    (results.parent / "page.md").write_text("| a | b |\n| --- | --- |\n| 1 | 2 |\n")
    with pytest.raises(UsageError, match=text):
        evaluate(expression, results)


def test_estimate_of_selected_trials_has_no_interval() -> None:
    with pytest.raises(UsageError, match="expected trials enough for an estimate"):
        evaluate("estimate table1/lstm-512 table1 part=interval", RESULTS)


def test_cell_and_lowest_read_other_files(results: Path) -> None:
    (results.parent / "page.md").write_text("| a | ratio |\n| --- | --- |\n| x 1 | 2.5 |\n")
    (results / "own.csv").write_text("trial,error\n1,0.30\n1,0.20\n2,0.10\n")
    assert evaluate("cell page.md 'x 1' ratio", results) == "2.5"
    assert evaluate("lowest own.csv error trial=1", results) == "0.20"


def test_unreadable_study_is_refused(results: Path) -> None:
    (results / "small" / "trials.jsonl").write_text("{")
    assert "not JSON" in verify(results).mistakes[0]
    with pytest.raises(UsageError, match="not JSON"):
        evaluate("best small", results)


def test_wrong_arguments_of_keep_are_refused(trained: Path, results: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="expected dtype among float32, float16, got 'int8'"):
        keep_record(trained, tmp_path / "new", dtype="int8")
    with pytest.raises(UsageError, match="expected a new or an empty folder"):
        keep_record(trained, results / "small")
    shutil.copytree(trained, tmp_path / "empty")
    (tmp_path / "empty" / "trials.jsonl").unlink()
    with pytest.raises(UsageError, match="expected finished trials, got none"):
        keep_record(tmp_path / "empty", tmp_path / "new")


def test_missing_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="expected a folder of records"):
        verify(tmp_path / "nothing")
