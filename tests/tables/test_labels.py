"""A table of labels: which recording each row means, and what is said where they do not fit."""

from pathlib import Path

import numpy as np
import pytest

from mistrnn.errors import UsageError
from mistrnn.tables import LabelTable, Recording, as_classes, as_numbers, give_labels, read_labels


def table(
    path: Path, text: str, *, id_column: str | None = None, group_column: str | None = None, need_id: bool = False
) -> LabelTable:
    (path / "labels.csv").write_text(text)
    return read_labels(
        path / "labels.csv", id_column=id_column, label_column="label", group_column=group_column, need_id=need_id
    )


def recordings(*ids: str) -> list[Recording]:
    return [Recording(own, Path(f"{own}.csv"), np.zeros((3, 1)), np.arange(3)) for own in ids]


def test_labels_find_their_recordings_by_id_or_file_name(tmp_path: Path) -> None:
    notices: list[str] = []
    labels = table(tmp_path, "File,label,who\n007.csv,01,u\nsub/b,2,v\nc.csv.gz,,v\nother,2,v\n", group_column="who")
    found = give_labels(recordings("007", "sub/b", "c"), labels, notices.append)
    assert [(one.label, one.group) for one in found] == [("01", "u"), ("2", "v"), (None, "v")]
    assert notices == [f"{tmp_path}/labels.csv: 1 of 4 rows belong to no recording that was read: other."]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "x,label\n1,2\n",
            r"expected a column called id, recording, file .* with the recordings' ids; there are 'x', 'label'",
        ),
        ("id,x\n1,2\n", r"expected the labels in a column 'label' .*; there are 'id', 'x'"),
        ("id,label\na,1\nb,2\na,1\n", r"line 4: expected every recording once, got 'a' again; it was in .*line 2"),
        ("id,label\na.csv,1\na,2\nb,1\n", r"line 3: expected every recording once, got 'a' again; it was in .*line 2"),
        ("id,label\na,1\n,2\n", r"line 3: expected an id in column 'id', got an empty cell"),
        ("id,label\na,1\n", r"expected a row for every recording, got none for 1 of 2: b\. Add them"),
        ("id,label\nA,1\nB,1\n", r"expected the recordings' ids, got none of them\. Ids here: A, B; recordings: a, b"),
        ("id,label,who\na,1,u\nb,2,\n", r"line 3: expected the group of 'b', got an empty cell"),
    ],
)
def test_labels_that_do_not_fit_are_named(tmp_path: Path, text: str, expected: str) -> None:
    with pytest.raises(UsageError, match=expected):
        give_labels(recordings("a", "b"), table(tmp_path, text, group_column="who"), print)


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (["1", "-2", "0"], [1, -2, 0]),
        (["01", "2"], ["01", "2"]),
        (["1", "1.0"], ["1", "1.0"]),
        (["1", "-0"], ["1", "-0"]),
        (["a", None], ["a", None]),
        (["3", None], [3, None]),
        (["12345678901234567890", "1"], ["12345678901234567890", "1"]),
    ],
)
def test_classes_are_whole_numbers_only_if_all_are_written_so(texts: list[str | None], expected: list[object]) -> None:
    found = as_classes(np.array(texts, dtype=object)).tolist()
    assert found == expected
    assert [type(one) for one in found] == [type(one) for one in expected]


def test_numbers_that_are_none_are_named(tmp_path: Path) -> None:
    labels = table(tmp_path, "id,label\na,1.5\nb.csv,high\n")
    found = give_labels(recordings("a", "b"), labels, print)
    assert as_numbers(found[:1], labels).tolist() == [1.5]
    with pytest.raises(
        UsageError, match=r"line 3, column 'label': expected a number, because of --regress, got 'high'"
    ):
        as_numbers(found, labels)


def test_id_column_of_the_recordings_may_have_another_name_unless_it_was_asked_for(tmp_path: Path) -> None:
    assert table(tmp_path, "file,label\na,1\n", id_column="rec").row_of == {"a": 0}
    with pytest.raises(
        UsageError, match=r"expected a column 'rec' with the recordings' ids; there are 'file', 'label'"
    ):
        table(tmp_path, "file,label\na,1\n", id_column="rec", need_id=True)


def test_labels_groups_and_ids_of_a_table_may_have_gotten_a_point_from_a_gap(tmp_path: Path) -> None:
    labels = table(tmp_path, "id,label,who\n1.0,1.0,4.0\n2.0,2.0,5\n3.0,,5\n", group_column="who")
    found = give_labels(recordings("1", "2", "3.0"), labels, print)
    assert [(one.label, one.group) for one in found] == [("1", "4"), ("2", "5"), (None, "5")]
    with pytest.raises(UsageError, match=r"line 3: expected every recording once, got '1' again; it was in .*line 2"):
        give_labels(recordings("1"), table(tmp_path, "id,label\n1,a\n1.0,b\n"), print)
    numbers = table(tmp_path, "id,label\n1.0,high\n")
    with pytest.raises(UsageError, match=r"line 2, column 'label': expected a number, because of --regress"):
        as_numbers(give_labels(recordings("1"), numbers, print), numbers)
