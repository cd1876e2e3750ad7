"""The ctypes mirrors of the CUDA structs, compared field by field by the emulator's compiler."""

import ctypes

import pytest

from mistrnn.kernels.cuda.arguments import Arguments
from mistrnn.kernels.cuda.heuristics import choose_wgrad, smallest_fit
from mistrnn.kernels.cuda.stepwise.launch import StepArguments
from mistrnn.kernels.cuda.stepwise.variant import stepwise_variant
from mistrnn.kernels.cuda.wgrad.launch import WgradArguments
from tests.kernels.emulator import check_mirror, on_linux
from tests.kernels.test_variants import problem

pytestmark = on_linux

PROGRAMS: dict[type[ctypes.Structure], str] = {
    Arguments: smallest_fit(problem("rnn", False, 8), 90).source,
    StepArguments: stepwise_variant(problem("lstm", False, 128), 1, 1, 90, 132).source,
    WgradArguments: choose_wgrad(2, 8, 8, False, 80)[1].source,
}


def with_swapped_fields(structure: type[ctypes.Structure], first: str, second: str) -> type[ctypes.Structure]:
    """Return a copy of a mirror with two fields in each other's place."""
    names = {first: second, second: first}
    fields = [(names.get(name, name), *kind) for name, *kind in structure._fields_]
    return type(structure.__name__, (ctypes.Structure,), {"_fields_": fields})


@pytest.mark.parametrize("structure", PROGRAMS)
def test_mirror_of_a_struct_has_its_fields(structure: type[ctypes.Structure]) -> None:
    assert check_mirror(PROGRAMS[structure], structure) == ""


@pytest.mark.parametrize(
    ("structure", "first", "second"),
    [
        (Arguments, "keep_h", "keep_c"),
        (Arguments, "weight_ih_trial", "weight_hh_trial"),
        (StepArguments, "z", "carried"),
        (WgradArguments, "a", "b"),
    ],
)
def test_mirror_with_two_swapped_fields_fails(structure: type[ctypes.Structure], first: str, second: str) -> None:
    wrong = with_swapped_fields(structure, first, second)
    assert ctypes.sizeof(wrong) == ctypes.sizeof(structure)
    assert f"{structure.__name__}.{first}" in check_mirror(PROGRAMS[structure], wrong)
