"""The compiled library: its structs equal their mirrors field by field, and it has every cell of the package."""

import ctypes
from itertools import pairwise

import pytest

from mistrnn.kernels.cell import cells
from mistrnn.kernels.cpu import library
from mistrnn.kernels.cpu.library import STRUCTS, Library
from mistrnn.layers import LAYERS

every_struct = pytest.mark.parametrize("struct", STRUCTS, ids=lambda struct: struct.__name__)


def load_with(fields: list[tuple[str, type]], struct: type[ctypes.Structure], patch: pytest.MonkeyPatch) -> Library:
    """Load the library with other fields in the mirror of one struct."""
    mirror = type(struct.__name__, (ctypes.Structure,), {"_fields_": fields})
    patch.setattr(library, "STRUCTS", [mirror if known is struct else known for known in STRUCTS])
    return Library(library.PATH)


@every_struct
def test_library_with_its_own_structs_loads(struct: type[ctypes.Structure], monkeypatch: pytest.MonkeyPatch) -> None:
    load_with(list(struct._fields_), struct, monkeypatch)


@every_struct
def test_library_with_two_fields_of_a_mirror_swapped_raises(
    struct: type[ctypes.Structure], monkeypatch: pytest.MonkeyPatch
) -> None:
    for kind in {kind for _, kind in struct._fields_}:
        places = [place for place, field in enumerate(struct._fields_) if field[1] is kind]
        for first, second in pairwise(places):
            fields = list(struct._fields_)
            fields[first], fields[second] = fields[second], fields[first]
            with pytest.raises(OSError, match=f"of another version of mistrnn: struct {struct.__name__} differs"):
                load_with(fields, struct, monkeypatch)


@every_struct
@pytest.mark.parametrize("missing", [0, -1])
def test_library_with_a_field_missing_from_a_mirror_raises(
    struct: type[ctypes.Structure], missing: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    fields = list(struct._fields_)
    del fields[missing]
    with pytest.raises(OSError, match=f"struct {struct.__name__} differs"):
        load_with(fields, struct, monkeypatch)


def test_library_has_every_cell_with_a_cpu_kernel() -> None:
    assert library.loaded is not None, library.problem
    assert set(LAYERS) == {cell.name for cell in cells()}
    assert set(library.loaded.cells) == {cell.name for cell in cells() if (cell.folder / "cpu.h").exists()}
    assert sorted(library.loaded.cells.values()) == list(range(len(library.loaded.cells)))
