"""One table from one file: what is kept as it is, and what is said of a file that cannot be read."""

import datetime
import gzip
import pickle
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from mistrnn.errors import UsageError
from mistrnn.tables import read_table


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def test_text_keeps_its_zeros_and_numbers_are_numbers(tmp_path: Path) -> None:
    table = read_table(write(tmp_path / "a.csv", "id,x, y\n007,1, 2.5\n01,-1e3,+4\n,nan,\n"))
    assert table.names == ["id", "x", "y"]
    assert table.texts("id").tolist() == ["007", "01", None]
    np.testing.assert_array_equal(table.numbers("x"), [1, -1000, np.nan])
    np.testing.assert_array_equal(table.numbers("y"), [2.5, 4, np.nan])


@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
def test_delimiters_and_newlines_of_other_programs_are_read(tmp_path: Path, delimiter: str, newline: str) -> None:
    lines = ["x,y".replace(",", delimiter), "", "1,2".replace(",", delimiter), "3,4".replace(",", delimiter), ""]
    (tmp_path / "a.csv").write_bytes(b"\xef\xbb\xbf" + newline.join(lines).encode())
    table = read_table(tmp_path / "a.csv")
    assert table.names == ["x", "y"]
    assert table.numbers("y").tolist() == [2, 4]
    assert table.place(1) == f"{tmp_path}/a.csv, line 4"


def test_quoted_cells_may_hold_commas_and_lines(tmp_path: Path) -> None:
    table = read_table(write(tmp_path / "a.csv", 'x,"a, b"\n1,"two\nlines"\n3,"say ""hi"""\n'))
    assert table.texts("a, b").tolist() == ["two\nlines", 'say "hi"']
    assert table.place(1).endswith("line 4")


def test_words_for_missing_numbers_are_missing(tmp_path: Path) -> None:
    table = read_table(write(tmp_path / "a.csv", "x\n1\nNA\nnull\n2\n"))
    np.testing.assert_array_equal(table.numbers("x"), [1, np.nan, np.nan, 2])


def test_columns_without_a_name_are_counted_and_left_out(tmp_path: Path) -> None:
    pd.DataFrame({"x": [1.0, 2.0]}).to_csv(tmp_path / "a.csv")
    table = read_table(tmp_path / "a.csv")
    assert (table.names, table.unnamed) == (["x"], 1)


def test_numbers_that_count_up_are_names(tmp_path: Path) -> None:
    pd.DataFrame(np.ones((2, 3))).to_csv(tmp_path / "a.csv", index=False)
    assert read_table(tmp_path / "a.csv").names == ["0", "1", "2"]


def test_gzip_is_read_and_a_truncated_one_is_named(tmp_path: Path) -> None:
    packed = gzip.compress(b"x\n" + b"1\n" * 5000)
    (tmp_path / "a.csv.gz").write_bytes(packed)
    assert len(read_table(tmp_path / "a.csv.gz")) == 5000
    (tmp_path / "b.csv.gz").write_bytes(packed[: len(packed) // 2])
    with pytest.raises(UsageError, match=r"b\.csv\.gz: cannot be read \(.*\): truncated, or something else\?"):
        read_table(tmp_path / "b.csv.gz")


@pytest.mark.parametrize(
    "text",
    [
        'id,note\n7,"Steps:\n1, turn on\n2, wait"\n8,fine\n',
        'id,x,y,note\n7,1,2,"seen:\nred, green, blue, and grey"\n8,1,2,fine\n',
        'id;note\n7;"a\n1; b"\n8;c\n',
        'id,note\n7,"say ""no"",\nor not"\n8,5" wide\n',
    ],
)
def test_text_of_several_lines_in_quotes_is_one_cell(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.csv").write_text(text)
    assert len(read_table(tmp_path / "a.csv").data) == 2


def test_many_quotes_take_no_longer_than_they_are_many(tmp_path: Path) -> None:
    rows = "".join(f'"{k}","a {k}"\n' for k in range(100_000))
    (tmp_path / "a.csv").write_text('"x","note"\n' + rows)
    begin = time.monotonic()
    assert len(read_table(tmp_path / "a.csv").data) == 100_000
    assert time.monotonic() - begin < 10  # half a second; minutes, were the lines before each quote counted


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", r"a\.csv: expected a line with the names of the columns, got an empty file"),
        ("1,2\n3,4\n", r"a\.csv, line 1: expected the names of the columns in the first line, got numbers: 1"),
        ("x,y,x\n1,2,3\n", r"a\.csv: expected every column to have its own name, got 'x' 2 times \(columns 1, 3\)"),
        ('x,y\n1,"2\n3,4\n', r"a\.csv, line 2: a quote begins here and never ends\. Is the file truncated\?"),
        ('x,y\n1,"2\n3,4\n5,"6\n', r"a\.csv, line 2: a quote begins here and ends in a later row"),
        ('x;a;b;c\nu;1;2;"o\nv;3;4;p"\n', r"a\.csv, line 2: a quote begins here and ends in a later row"),
        ("x,y\n1,2\n\n3\n", r"a\.csv, line 4: expected 2 cells, .* got 1\. Is the file truncated\?"),
        ("x,y\n1,2\n3,4,5\n", r"a\.csv, line 3: expected 2 cells, .* got 3\. Put text with a comma into quotes"),
        ("sep=;\nx;y\n1;2\n", r"a\.csv, line 1: expected the names .* got 'sep=;', .*: remove the first line\.$"),
        ('"sep=,"\nx,y\n1,2\n', r"a\.csv, line 1: .*: remove the first line\.$"),
        ("x\0y\n", r"a\.csv: expected text, got a file with zero bytes"),
    ],
)
def test_csv_that_cannot_be_read_is_named(tmp_path: Path, text: str, expected: str) -> None:
    with pytest.raises(UsageError, match=expected):
        read_table(write(tmp_path / "a.csv", text))


def test_cell_that_is_no_number_is_named(tmp_path: Path) -> None:
    table = read_table(write(tmp_path / "a.csv", "x;y\n1;2\n3;4,5\n"))
    with pytest.raises(
        UsageError, match=r"a\.csv, line 3, column 'y': expected a number, got '4,5'\. Write decimals with a point\.$"
    ):
        table.numbers("y")
    with pytest.raises(UsageError, match=r"got '4,5'\. Write decimals with a point\.$"):
        table.numbers("y", "Leave it out.")  # it would be bad advice
    with pytest.raises(UsageError, match=r"line 2, column 'y': expected a number, got 'a,b'\. Leave it out\.$"):
        read_table(write(tmp_path / "b.csv", "x;y\n1;a,b\n")).numbers("y", "Leave it out.")


@pytest.mark.parametrize("cells", ["0,1\n0,2", "2026-01-31 12:00:00,5\n2026-01-31 12:00:01,5"])
def test_decimal_comma_of_a_time_is_named(tmp_path: Path, cells: str) -> None:
    table = read_table(write(tmp_path / "a.csv", "t;x\n" + "".join(f"{cell};1\n" for cell in cells.split("\n"))))
    with pytest.raises(
        UsageError, match=r"line 2, column 't': expected a time, .*,\d'\. Write decimals with a point\.$"
    ):
        table.times("t")


def test_other_encodings_are_named(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes("x,größe\n1,2\n".encode("latin-1"))
    with pytest.raises(UsageError, match=r"a\.csv, line 1: expected text in UTF-8, got the byte 0xf6"):
        read_table(tmp_path / "a.csv")


def test_parquet_keeps_types_and_leaves_the_index_out(tmp_path: Path) -> None:
    frame = pd.DataFrame(
        {
            "id": pd.Categorical(["007", "8"]),
            "n": [1.0, np.nan],
            "b": [True, False],
            "f": np.array([0.5, 1], dtype=np.float32),
            "when": pd.to_datetime(["2026-01-01 00:00:00.0", "2026-01-01 00:00:01.5"]),
        },
        index=[3, 9],
    )
    frame.to_parquet(tmp_path / "a.parquet")
    table = read_table(tmp_path / "a.parquet")
    assert table.names == ["id", "n", "b", "f", "when"]
    assert table.texts("id").tolist() == ["007", "8"]
    assert table.texts("n").tolist() == ["1", None]
    assert table.texts("b").tolist() == ["True", "False"]
    assert table.numbers("b").tolist() == [1, 0]
    assert table.numbers("f").tolist() == [0.5, 1]
    assert np.diff(table.times("when")).tolist() == [1.5]
    assert table.place(1) == f"{tmp_path}/a.parquet, row 2"
    with pytest.raises(UsageError, match="expected numbers in column 'when', got timestamp"):
        table.numbers("when")


def test_dates_in_csv_are_times(tmp_path: Path) -> None:
    table = read_table(write(tmp_path / "a.csv", "when,bad\n2026-01-01 00:00:00,x\n2026-01-01 00:00:02.5,y\n"))
    assert np.diff(table.times("when")).tolist() == [2.5]
    with pytest.raises(
        UsageError, match=r"a\.csv, line 2, column 'bad': expected a time, a number or a date such as .*'x'"
    ):
        table.times("bad")


@pytest.mark.parametrize(
    ("cells", "expected"),
    [
        (["01.02.2024 10:00", "01.02.2024 10:01"], r"line 2, column 't': .* got '01\.02\.2024 10:00'\.$"),
        (["2024-02-01", " ", "2024-02-02", "soon"], r"line 5, column 't': .* got 'soon'\.$"),
        (["2024-02-01 10:00:00", "2024-02-01 10:00:01Z"], r"line 3, .*01Z'\. Write all dates with a time zone, or all"),
        (["2024-02-01 10:00:00Z", "2024-02-01 10:00:01"], r"line 3, .*01'\. Write all dates with a time zone, or all"),
        (["", "2024-02-01 10:00:00Z", "soon"], r"line 4, column 't': .* got 'soon'\.$"),
        (["NA", "0", "1", "soon"], r"line 5, column 't': expected a number, got 'soon'\.$"),
    ],
)
def test_cell_that_is_no_time_is_named(tmp_path: Path, cells: list[str], expected: str) -> None:
    table = read_table(write(tmp_path / "a.csv", "t,x\n" + "".join(f"{cell},1\n" for cell in cells)))
    with pytest.raises(UsageError, match=rf"a\.csv, {expected}"):
        table.times("t")


@pytest.mark.parametrize("name", ["a.parquet", "a.npz"])
def test_truncated_binary_files_are_named(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    if name.endswith("npz"):
        np.savez(path, x=np.arange(1000.0))
    else:
        pd.DataFrame({"x": np.arange(1000.0)}).to_parquet(path)
    path.write_bytes(path.read_bytes()[:600])
    with pytest.raises(
        UsageError, match=rf"{name}: not readable as (Parquet|NPZ) \(.*\): truncated, or something else\?"
    ):
        read_table(path)


def test_npz_arrays_are_columns(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.arange(6.0).reshape(3, 2), label=np.array("walk"), t=np.arange(3))
    table = read_table(tmp_path / "a.npz")
    assert table.names == ["x0", "x1", "label", "t"]
    assert table.numbers("x1").tolist() == [1, 3, 5]
    assert table.texts("label").tolist() == ["walk"] * 3


def test_npz_of_unequal_lengths_and_pickles_are_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.zeros((2, 30)), label=np.zeros(30))
    with pytest.raises(UsageError, match=r"all with the same time, got x \[2, 30\], label \[30\]"):
        read_table(tmp_path / "a.npz")
    np.savez(tmp_path / "b.npz", x=np.array([{"a": 1}], dtype=object))
    with pytest.raises(
        UsageError, match=r"b\.npz: expected arrays of numbers or text, got Python objects, which are never"
    ):
        read_table(tmp_path / "b.npz")
    (tmp_path / "c.npz").write_bytes(pickle.dumps({"x": 1}))
    with pytest.raises(UsageError, match=r"c\.npz: "):
        read_table(tmp_path / "c.npz")


def test_other_files_and_missing_ones_are_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"a\.xlsx: expected a file that ends in \.csv, "):
        read_table(write(tmp_path / "a.xlsx", ""))
    with pytest.raises(UsageError, match=r"nowhere\.csv: there is no such file"):
        read_table(tmp_path / "nowhere.csv")


def test_delimiter_is_looked_for_outside_of_quotes(tmp_path: Path) -> None:
    table = read_table(write(tmp_path / "a.csv", '"x, in\nm";"y"\n1;2\n'))
    assert table.names == ["x, in\nm", "y"]
    assert table.numbers("y").tolist() == [2]


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("t;ax;ay;a (m/s, cal)\n0;1.5;2;1\n1;2;3;1\n", ["t", "ax", "ay", "a (m/s, cal)"]),
        ("a, in m, s, or g;b\n\n1;2\n", ["a, in m, s, or g", "b"]),  # the commas are more
        ('a;"b, c"\n1;"2, 3"\n', ["a", "b, c"]),  # in quotes they do not count
        ("a;b\n1,5;2,5\n", ["a", "b"]),
        ("a,b;c,d\n1,2,3\n", ["a", "b;c", "d"]),
        ("a;b;c (m/s, cal)\n", ["a", "b", "c (m/s, cal)"]),  # without a row, the most frequent
        ("a\tb; c, d\te\n", ["a", "b; c, d", "e"]),
    ],
)
def test_delimiter_is_what_cuts_header_and_first_row_alike(tmp_path: Path, text: str, names: list[str]) -> None:
    assert read_table(write(tmp_path / "a.csv", text)).names == names


def test_dates_with_a_time_zone_and_times_of_the_day_are_times(tmp_path: Path) -> None:
    text = (
        "z,zone\n2026-01-31T12:00:00Z,2026-01-31 12:00:00+01:00\n2026-01-31T12:00:01.5Z,2026-01-31 12:00:01.5+01:00\n"
    )
    table = read_table(write(tmp_path / "a.csv", text))
    assert np.diff(table.times("z")).tolist() == [1.5]
    assert (table.times("z") - table.times("zone")).tolist() == [3600, 3600]
    pd.DataFrame({"t": [datetime.time(12, 0, 0), datetime.time(12, 0, 1), None]}).to_parquet(tmp_path / "b.parquet")
    np.testing.assert_array_equal(read_table(tmp_path / "b.parquet").times("t"), [43200, 43201, np.nan])


def test_underscores_make_no_number(tmp_path: Path) -> None:
    table = read_table(write(tmp_path / "a.csv", "x\n1\n1_000\n"))
    with pytest.raises(UsageError, match=r"a\.csv, line 3, column 'x': expected a number, got '1_000'"):
        table.numbers("x")


def test_whole_numbers_of_half_precision_are_words_without_a_warning(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.array([1, 2], dtype=np.float16))
    pd.DataFrame({"x": np.array([1, 2], dtype=np.float16)}).to_parquet(tmp_path / "a.parquet")
    for name in ("a.npz", "a.parquet"):
        assert read_table(tmp_path / name).texts("x").tolist() == ["1", "2"]
