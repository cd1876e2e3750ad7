"""Recordings from folders and long tables: who is read, in which order, and what is said of the rest."""

import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from mistrnn.errors import UsageError
from mistrnn.tables import Reading, Recording, one_label_each, read_recordings


def read(
    place: Path, reading: Reading | None = None, *, labels: bool = False, groups: bool = False, **others: object
) -> tuple[list[Recording], Reading, list[str]]:
    notices: list[str] = []
    settings = {"strict": True, "say": notices.append, **others}
    found, used = read_recordings(place, reading or Reading(), labels=labels, groups=groups, **settings)  # type: ignore[arg-type]
    return found, used, notices


def folder(place: Path, **files: str) -> Path:
    place.mkdir(exist_ok=True)
    for name, text in files.items():
        (place / f"{name}.csv").write_text(text)
    return place


def test_every_file_of_a_folder_is_a_recording(tmp_path: Path) -> None:
    place = folder(tmp_path / "in", b="x,y\n1,2\n3,4\n", a="y,x\n20,10\n")
    (place / "sub").mkdir()
    pd.DataFrame({"x": [5.0], "y": [6.0]}).to_parquet(place / "sub" / "007.parquet")
    np.savez(place / "c.npz", x=np.array([7.0]), y=np.array([8.0]))
    (place / "notes.txt").write_text("")
    (place / "sub" / "loop").symlink_to(place)
    (place / ".hidden.csv").write_text("nothing")
    (place / "labels.csv").write_text("id,label\n")
    found, used, notices = read(place, skip=[place / "labels.csv"])
    assert [one.id for one in found] == ["a", "b", "c", "sub/007"]
    assert used.columns == ("y", "x")  # as in the first file
    assert [one.values.tolist() for one in found] == [[[20, 10]], [[2, 1], [4, 3]], [[8, 7]], [[6, 5]]]
    assert notices == [f"{place}: left out what is no recording (.csv, .csv.gz, .parquet, .npz): notes.txt."]


def test_long_table_is_taken_apart_by_id(tmp_path: Path) -> None:
    path = tmp_path / "long.csv"
    path.write_text("rec,x,label,who\n007,1,a,u\n3,2,b,v\n007,3,a,u\n3,4,,v\n")
    reading = Reading(id_column="rec", label_column="label", group_column="who")
    found, used, _ = read(path, reading, labels=True, groups=True)
    assert used.columns == ("x",)
    assert [(one.id, one.values[:, 0].tolist(), one.group) for one in found] == [
        ("007", [1, 3], "u"),
        ("3", [2, 4], "v"),
    ]
    assert [one.rows.tolist() for one in found] == [[0, 2], [1, 3]]
    assert [one.row_labels.tolist() for one in found if one.row_labels is not None] == [["a", "a"], ["b", None]]
    assert [one.label for one in one_label_each(found, "label")] == ["a", "b"]


def test_single_file_without_ids_is_one_recording(tmp_path: Path) -> None:
    path = folder(tmp_path, one="x\n1\n2\n") / "one.csv"
    assert [one.id for one in read(path)[0]] == ["one"]
    found, _, notices = read(path, Reading(id_column="rec"))
    assert [one.id for one in found] == ["one"]
    assert notices == [f"{path}: there is no column 'rec', so this is read as one recording."]
    with pytest.raises(UsageError, match=r"one\.csv: expected the id column 'rec'; there are 'x'"):
        read(path, Reading(id_column="rec"), need_id=True)


def test_time_puts_rows_in_order(tmp_path: Path) -> None:
    place = folder(tmp_path, a="t,x\n3,30\n1,10\n2,20\n")
    (one,), used, notices = read(place, Reading(time_column="t"))
    assert used.columns == ("x",)
    assert one.values[:, 0].tolist() == [10, 20, 30]
    assert one.rows.tolist() == [1, 2, 0]
    assert one.times is not None
    assert one.times.tolist() == ["1", "2", "3"]
    assert one.place(0).endswith("a.csv, line 3")
    assert not notices


def test_uneven_sampling_is_said(tmp_path: Path) -> None:
    place = folder(tmp_path, a="t,x\n1,1\n2,1\n3,1\n90,1\n", b="t,x\n1,1\n2,2\n3,3\n")
    _, _, notices = read(place, Reading(time_column="t"))
    assert notices[0].startswith("the rows of 1 of 2 recordings are far from evenly spaced in 't' (a);")


def test_column_without_a_name_is_left_out_with_a_notice(tmp_path: Path) -> None:
    place = folder(tmp_path, a=",x\n0,5\n1,6\n")
    (one,), used, notices = read(place)
    assert used.columns == ("x",)
    assert one.values.tolist() == [[5], [6]]
    assert notices == [f"left out columns without a name (row numbers?) in {place}/a.csv."]


def test_row_numbers_that_pandas_has_read_and_written_again_are_left_out(tmp_path: Path) -> None:
    place = folder(tmp_path / "in")
    pd.DataFrame({"x": [5, 6]}).to_csv(place / "a.csv")
    pd.read_csv(place / "a.csv").to_csv(place / "a.csv", index=False)
    pd.read_csv(place / "a.csv").to_parquet(place / "b.parquet")
    (place / "c.csv").write_text("x,Unnamed: 0,Unnamed: 0.1\n7,8,9\n")
    (place / "d.csv").write_text("x\n9\n")
    found, used, notices = read(place)
    assert used.columns == ("x",)
    assert [one.values[:, 0].tolist() for one in found] == [[5, 6], [5, 6], [7], [9]]
    places = ", ".join(str(place / name) for name in ("a.csv", "b.parquet", "c.csv"))
    assert notices == [f"left out columns without a name (row numbers?) in {places}."]
    (place / "d.csv").unlink()
    found, _, notices = read(place, Reading(columns=("x", "Unnamed: 0")))  # whoever asks for it gets it
    assert found[0].values.tolist() == [[5, 0], [6, 1]]
    assert not notices


@pytest.mark.parametrize(
    ("files", "reading", "expected"),
    [
        (
            {"a": "x\n1\n\nnan\n"},
            {},
            r"a\.csv, line 4, column 'x': expected a number, got nan \(1 such cell in",
        ),
        (
            {"a": "x,y\n1,\n,2\n"},
            {},
            r"a\.csv, line 2, column 'y': expected a number, got an empty cell \(2 such cells",
        ),
        ({"a": "x\n1\ninf\n"}, {}, r"a\.csv, line 3, column 'x': expected a number, got inf"),
        ({"a": "x\n1\n-1e39\n"}, {}, r"a\.csv, line 3, column 'x': expected a number, got -1e\+39, which is too large"),
        ({"a": "t,x\n1,2\ninf,3\ninf,4\n"}, {"time_column": "t"}, r"line 3: expected a time in .* got an infinite one"),
        ({"\udcff": "x\n1\n"}, {}, r"in: expected names of files in UTF-8, got '\\udcff\.csv'\. Rename it"),
        (
            {"a": "x,who\n1,bob\n"},
            {},
            r"a\.csv, line 2, column 'who': expected a number, got 'bob'\. Choose .* --columns",
        ),
        ({"a": "x,y\n"}, {}, r"a\.csv: expected rows below the names of the columns, got none"),
        ({"a": "x\n1\n", "b": "y\n1\n"}, {}, r"b\.csv: expected the columns of .*a\.csv, which are x, got y as well"),
        ({"a": "x,y\n1,2\n", "b": "y\n1\n"}, {}, r"b\.csv: expected the columns 'x', which are missing; there are 'y'"),
        ({"a": "x,y\n1,2\n"}, {"columns": ("x", "z")}, r"a\.csv: expected the columns 'z', which are missing"),
        ({"a": "id,x\n1,2\n"}, {"id_column": "id", "columns": ("id", "y")}, "expected the columns 'y'"),
        ({"a": "label\n1\n"}, {"label_column": "label"}, r"a\.csv: expected columns to read, got only label"),
        ({"a": "time,x\n1,2\n"}, {}, r"a\.csv: expected to be told whether the column 'time' is the time of each row"),
        (
            {"a": "x,Time (s)\n1,2\n"},
            {},
            r"whether the column 'Time \(s\)' is .*: --time-column 'Time \(s\)', or choose",
        ),
        ({"a": "x,y\n1,2\n1,bob\n"}, {"columns": ("x", "y")}, r"line 3, column 'y': expected a number, got 'bob'\.$"),
        ({"a": "t,x\n1,2\n1,3\n"}, {"time_column": "t"}, r"line 3: expected every time once .* that of .*line 2 again"),
        (
            {"a": "t,x\n1,2\n,3\n"},
            {"time_column": "t"},
            r"a\.csv, line 3: expected a time in column 't', got an empty cell",
        ),
        (
            {"a": "r,x\n1,2\n2,3\n"},
            {"id_column": "r"},
            r"a\.csv: expected one recording, because each file of a folder is",
        ),
    ],
)
def test_bad_recordings_are_named(
    tmp_path: Path, files: dict[str, str], reading: dict[str, object], expected: str
) -> None:
    place = folder(tmp_path / "in", **files)
    with pytest.raises(UsageError, match=expected):
        read(place, Reading(**reading))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "name", ["t", "T (s)", "t_ms", "Time (s)", "timestamp_ms", "TIME", "time2", "date_utc", "seconds since start"]
)
def test_column_that_may_be_the_time_is_asked_about(tmp_path: Path, name: str) -> None:
    place = folder(tmp_path, a=f"x,{name}\n1,2\n")
    with pytest.raises(UsageError, match="expected to be told whether the column"):
        read(place)
    assert read(place, Reading(time_column=name))[1].columns == ("x",)


@pytest.mark.parametrize("name", ["temperature", "timer_count", "t1", "t_room", "times", "dated", "uptime", "tx"])
def test_column_of_another_name_is_an_input(tmp_path: Path, name: str) -> None:
    assert read(folder(tmp_path, a=f"x,{name}\n1,2\n"))[1].columns == ("x", name)


def test_columns_that_were_chosen_may_have_others_beside_them(tmp_path: Path) -> None:
    place = folder(tmp_path, a="x,y\n1,2\n", b="note,x\nhello,3\n")
    found, _, _ = read(place, Reading(columns=("x",)))
    assert [one.values.tolist() for one in found] == [[[1]], [[3]]]


def test_groups_and_labels_that_change_within_a_recording_are_named(tmp_path: Path) -> None:
    place = folder(tmp_path, a="x,label,who\n1,a,u\n2,b,u\n3,b,v\n")
    found, _, _ = read(place, Reading(label_column="label", columns=("x",)), labels=True)
    with pytest.raises(
        UsageError, match=r"a\.csv, line 3, column 'label': expected one label in recording 'a', got 'a' and"
    ):
        one_label_each(found, "label")
    with pytest.raises(
        UsageError, match=r"a\.csv, line 4, column 'who': expected one group in recording 'a', got 'u' and"
    ):
        read(place, Reading(columns=("x",), group_column="who"), groups=True)
    (place / "a.csv").write_text("x,who\n1,\n")
    with pytest.raises(UsageError, match=r"a\.csv, line 2: expected a group in column 'who', got none"):
        read(place, Reading(group_column="who"), groups=True)


def test_places_without_recordings_are_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="nowhere: there is no such folder or file"):
        read(tmp_path / "nowhere")
    with pytest.raises(UsageError, match=r"expected recordings, files that end in \.csv, .*, got none"):
        read(tmp_path)
    folder(tmp_path, a="x\n1\n")
    pd.DataFrame({"x": [1.0]}).to_parquet(tmp_path / "a.parquet")
    with pytest.raises(
        UsageError, match=r"expected one file for each recording, got two of 'a': .*a\.csv and .*a\.parquet"
    ):
        read(tmp_path)


def test_row_without_an_id_is_named(tmp_path: Path) -> None:
    path = folder(tmp_path, long="id,x\n1,2\n,3\n") / "long.csv"
    with pytest.raises(
        UsageError, match=r"long\.csv, line 3: expected an id in column 'id', got an empty cell \(1 such rows\)"
    ):
        read(path, Reading(id_column="id"))


def test_rows_are_read_fast_enough_for_millions(tmp_path: Path) -> None:
    rows = 100_000
    frame = pd.DataFrame(np.random.default_rng(0).normal(size=(rows, 4)), columns=list("wxyz"))
    frame["id"] = np.arange(rows) % 1000
    frame["t"] = np.arange(rows)
    frame.to_csv(tmp_path / "long.csv", index=False)
    started = time.process_time()
    found, _, _ = read(tmp_path / "long.csv", Reading(id_column="id", time_column="t"))
    assert (time.process_time() - started) * 10 < 30  # so many seconds for a million
    assert len(found) == 1000


def test_whole_numbers_are_the_same_label_and_group_in_files_with_and_without_a_gap(tmp_path: Path) -> None:
    place = folder(tmp_path / "in")
    pd.DataFrame({"x": [1, 2], "label": [1, None], "who": [4, 4]}).to_csv(place / "a.csv", index=False)
    pd.DataFrame({"x": [1, 2], "label": [1, 2], "who": [4, None]}).to_csv(place / "b.csv", index=False)
    found, _, _ = read(place, Reading(label_column="label", group_column="who"), labels=True, groups=True)
    assert [one.row_labels.tolist() for one in found if one.row_labels is not None] == [["1", None], ["1", "2"]]
    assert [one.group for one in found] == ["4", "4"]


def test_numbers_with_a_point_stay_words_where_one_of_any_file_is_not_whole(tmp_path: Path) -> None:
    place = folder(tmp_path / "in", a="x,label,who\n1,1.0,2.0\n", b="x,label,who\n1,1.1,u\n")
    found, _, _ = read(place, Reading(label_column="label", group_column="who"), labels=True, groups=True)
    assert [one.row_labels.tolist() for one in found if one.row_labels is not None] == [["1.0"], ["1.1"]]
    assert [one.group for one in found] == ["2.0", "u"]


def test_long_table_may_write_a_whole_number_in_two_ways(tmp_path: Path) -> None:
    path = folder(tmp_path, long="rec,x,who\n1,2,7\n1.0,3,7.0\n2.0,4,8\n") / "long.csv"
    found, _, _ = read(path, Reading(id_column="rec", group_column="who"), groups=True)
    assert [(one.id, one.group, len(one.values)) for one in found] == [("1", "7", 2), ("2", "8", 1)]
