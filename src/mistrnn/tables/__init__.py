"""People's own data: recordings and labels from CSV, Parquet and NPZ files."""

from mistrnn.tables._read import SUFFIXES, SourceTable, id_of, read_table
from mistrnn.tables._whole import without_point
from mistrnn.tables.labels import LabelTable, as_classes, as_numbers, give_labels, read_labels
from mistrnn.tables.recordings import Reading, Recording, one_label_each, read_recordings
from mistrnn.tables.split import hold_out

__all__ = [
    "SUFFIXES",
    "LabelTable",
    "Reading",
    "Recording",
    "SourceTable",
    "as_classes",
    "as_numbers",
    "give_labels",
    "hold_out",
    "id_of",
    "one_label_each",
    "read_labels",
    "read_recordings",
    "read_table",
    "without_point",
]
