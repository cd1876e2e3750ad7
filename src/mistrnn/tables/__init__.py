"""People's own data: recordings and labels from CSV, Parquet and NPZ files."""

from mistrnn.tables._read import SUFFIXES, SourceTable, id_of, read_table
from mistrnn.tables._whole import without_point
from mistrnn.tables.labelled import Labelled, classes_of, known_classes_of, read_labelled
from mistrnn.tables.labels import LabelTable, as_classes, as_numbers, give_labels, read_labels
from mistrnn.tables.recordings import Reading, Recording, one_label_each, read_recordings
from mistrnn.tables.split import hold_out

__all__ = [
    "SUFFIXES",
    "LabelTable",
    "Labelled",
    "Reading",
    "Recording",
    "SourceTable",
    "as_classes",
    "as_numbers",
    "classes_of",
    "give_labels",
    "hold_out",
    "id_of",
    "known_classes_of",
    "one_label_each",
    "read_labelled",
    "read_labels",
    "read_recordings",
    "read_table",
    "without_point",
]
