"""`mist keep` and `mist verify`."""

import json
from pathlib import Path

from tests.cli.command import SMALL, Mist


def test_kept_study_is_verified_and_a_changed_record_is_not(mist: Mist, tmp_path: Path) -> None:
    mist("sweep", "copy", *SMALL, "--trials", 2, "--out", tmp_path / "study")
    record = tmp_path / "results" / "small"
    status, out, _ = mist("keep", tmp_path / "study", "--out", record, "--top", 2)
    assert (status, len(out.splitlines())) == (0, 5)
    (record / "README.md").write_text(
        "<!-- recorded: by hand -->1.5<!-- end --> <!-- recomputed: best small --><!-- end -->"
    )
    assert mist("verify", tmp_path / "results")[0] == 1
    status, out, _ = mist("verify", tmp_path / "results", "--write")
    assert (status, out.splitlines()[0]) == (0, "results/small/README.md: written")
    status, out, _ = mist("verify", tmp_path / "results")
    assert status == 0
    assert "not recomputed: results/small/README.md, line 1: by hand" in out
    assert out.endswith("1 studies with 2 trials, 2 kept models tested again, 1 passages of documents: no mistakes\n")
    trials = record / "trials.jsonl"
    lines = [json.loads(line) | {"test_error": 0.5} for line in trials.read_text().splitlines()]
    trials.write_text("".join(json.dumps(line) + "\n" for line in lines))
    status, out, _ = mist("verify", tmp_path / "results")
    assert status == 1
    assert "wrong: small, trial 0: test_error is 0.5, and its parameters have" in out


def test_verify_of_a_missing_folder_is_refused(mist: Mist, tmp_path: Path) -> None:
    status, _, error = mist("verify", tmp_path / "nothing")
    assert (status, "expected a folder of records" in error) == (2, True)
