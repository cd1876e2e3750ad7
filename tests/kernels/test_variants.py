"""The GPU kernels as programs: every variant compiles for every architecture, on a machine without a GPU."""

import hashlib
import multiprocessing
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from mistrnn.kernels import _nvrtc, choices, cuda
from mistrnn.kernels._outer import OuterOfGroups, OuterVariant
from mistrnn.kernels._variant import MAX_HIDDEN_ALONE, OLDEST_WITH_CLUSTERS, Launch, Problem, Variant, block_memory
from mistrnn.kernels.choices import alone, fitting, outer_choice, serves_one
from tests.layers.cases import every_fused_layer

ARCHITECTURES = (80, 90, 100)
DELAYS = {"mist": tuple(2**k for k in range(8)), "narx": tuple(range(1, 9)), "clockwork": tuple(2**k for k in range(8))}

every_architecture = pytest.mark.parametrize("capability", ARCHITECTURES)


def problem(name: str, backward: bool, hidden: int, parts: int = 2, **options: Any) -> Problem:
    delays = DELAYS.get(name, ())
    memory = max(delays) if name in ("mist", "narx") else 1
    options = {"inline": True, "bias_hn": name == "gru"} | options
    return Problem(name, backward, hidden, delays=delays, memory=memory, parts=parts, **options)


def spilled(variant: Variant | OuterVariant) -> int:
    """Bytes of registers that the settled kernel keeps in memory."""
    spare, _, log = _nvrtc._settle(variant)
    found = _nvrtc._with_spare(variant, spare)
    if isinstance(found, Variant):
        assert found.shared_memory <= block_memory(found.capability)
        assert found.threads <= 1024
    numbers = re.findall(r"(\d+) bytes spill", log)
    assert len(numbers) >= 2
    return sum(map(int, numbers))


@every_fused_layer
@pytest.mark.parametrize(
    ("capability", "hidden"), [(80, 139), (80, 1024), (90, 139), (90, 512), (90, 1024), (100, 139), (100, 1024)]
)
def test_no_variant_spills_registers(name: str, capability: int, hidden: int) -> None:
    hidden -= hidden % 8 if name == "clockwork" else 0
    if capability < OLDEST_WITH_CLUSTERS:
        hidden = min(hidden, MAX_HIDDEN_ALONE[name])
    for backward in (False, True):
        assert spilled(fitting(problem(name, backward, hidden), capability)) == 0


@every_fused_layer
@pytest.mark.parametrize(("capability", "hidden"), [(80, 139), (90, 139), (90, 1024), (100, 139)])
def test_no_variant_with_several_inputs_spills_registers(name: str, capability: int, hidden: int) -> None:
    hidden -= hidden % 8 if name == "clockwork" else 0
    if capability < OLDEST_WITH_CLUSTERS:
        hidden = min(hidden, MAX_HIDDEN_ALONE[name])
    assert spilled(fitting(problem(name, False, hidden, inline=False), capability)) == 0


@every_fused_layer
@pytest.mark.parametrize("capability", [90, 100])
@pytest.mark.parametrize(("hidden", "cluster"), [(100, 2), (139, 3), (198, 4)])
def test_no_variant_of_few_sequences_spills_registers(name: str, capability: int, hidden: int, cluster: int) -> None:
    hidden -= hidden % 8 if name == "clockwork" else 0
    for backward in (False, True):
        variant = fitting(problem(name, backward, hidden), capability, cluster)
        assert variant.launch.cluster >= cluster
        assert spilled(variant) == 0


@every_fused_layer
@every_architecture
def test_no_variant_of_full_precision_spills_registers(name: str, capability: int) -> None:
    for backward in (False, True):
        assert spilled(fitting(problem(name, backward, 128, parts=3), capability)) == 0


@every_fused_layer
@pytest.mark.parametrize(("capability", "hidden"), [(80, 100), (90, 100), (90, 512), (100, 100)])
def test_no_variant_of_a_sequence_alone_spills_registers(name: str, capability: int, hidden: int) -> None:
    hidden -= hidden % 8 if name == "clockwork" else 0
    if capability < OLDEST_WITH_CLUSTERS:
        hidden = min(hidden, 128)
    found = fitting(problem(name, False, hidden, parts=3), capability, 1 if capability < OLDEST_WITH_CLUSTERS else 2)
    assert spilled(alone(found)) == 0


@every_fused_layer
@every_architecture
def test_every_option_compiles(name: str, capability: int) -> None:
    options: list[dict[str, Any]] = [
        {"inline": False, "norm": True, "reset": True, "lengths": True, "reverse": True, "zoneout": 1, "dropout": True},
        {"inline": False, "zoneout": 2, "bias": False, "save": False},
        {"parts": 0, "double": True},
        {"parts": 1},
    ]
    for chosen in options:
        variants = [fitting(problem(name, backward, 40, **chosen), capability) for backward in (False, True)]
        if serves_one(variants[0]):
            variants.append(alone(variants[0]))
        for variant in variants:
            code, _ = _nvrtc.compile_now(variant)
            assert code[:4] == b"\x7fELF"


def test_compiling_writes_into_no_bytes_of_others() -> None:
    """A compiler that has nothing to say writes one zero; once it went into the one b" " that all of Python shares."""
    options = {
        "inline": False,
        "norm": True,
        "reset": True,
        "lengths": True,
        "reverse": True,
        "zoneout": 1,
        "dropout": True,
    }
    found = [_nvrtc.compile_now(fitting(problem("mist", backward, 40, **options), 80))[1] for backward in (False, True)]
    assert "" in found
    assert [bytes([value])[0] for value in range(256)] == list(range(256))


WEIGHTS = [
    (198, 198, False),
    (147, 139, False),
    (400, 100, False),
    (2048, 512, False),
    (400, 1, False),
    (64, 512, True),
]
"""Rows and columns of gradients of weights, and whether the columns are those of several delays."""


@every_architecture
@pytest.mark.parametrize("parts", [1, 2, 3])
@pytest.mark.parametrize("weights", WEIGHTS)
def test_the_kernel_of_weight_gradients_spills_no_registers(
    weights: tuple[int, int, bool], parts: int, capability: int
) -> None:
    _, variant = outer_choice(parts, *weights, capability)
    assert spilled(variant) == 0
    assert variant.shared_memory <= block_memory(capability)


@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("weights", [*WEIGHTS, (520, 512, False), (256, 256, False), (300, 100, False), (1, 1, False)])
def test_the_kernel_of_weight_gradients_by_groups_spills_no_registers(
    weights: tuple[int, int, bool], parts: int
) -> None:
    _, variant = outer_choice(parts, *weights, 90)
    assert isinstance(variant, OuterOfGroups)
    assert spilled(variant) == 0
    assert variant.stages >= 3
    assert variant.shared_memory <= block_memory(90)
    # The compiler says so where products would wait for each other or registers could not be moved.
    assert "Performance Loss" not in _nvrtc.compile_now(variant, "--ptxas-options=-v")[1]


def test_registers_of_a_block_by_groups_suffice() -> None:
    for delays, groups, tiles in [(False, 3, 1), (False, 3, 18), (False, 3, 22), (True, 2, 8), (True, 2, 32)]:
        variant = OuterOfGroups(2, delays, 90, groups, tiles)
        multiplying, reading = variant.registers
        assert 24 <= multiplying <= reading <= 240
        assert multiplying % 8 == reading % 8 == 0
        assert 128 * (groups * multiplying + reading) <= 65536


def test_groups_multiply_for_weight_gradients_where_they_can() -> None:
    def grouped(parts: int, capability: int) -> bool:
        return isinstance(outer_choice(parts, 147, 139, False, capability)[1], OuterOfGroups)

    assert [grouped(parts, 90) for parts in (1, 2, 3)] == [True, True, False]
    assert not grouped(2, 100)


@pytest.mark.parametrize("parts", [1, 2, 3])
@pytest.mark.parametrize("weights", WEIGHTS)
def test_a_weight_gradient_on_a_gpu_with_little_shared_memory_fits(weights: tuple[int, int, bool], parts: int) -> None:
    _, variant = outer_choice(parts, *weights, 86)
    assert variant.stages >= 2
    assert variant.shared_memory <= block_memory(86)


def test_a_weight_gradient_is_laid_out_so_that_few_blocks_share_it() -> None:
    for rows, columns, blocks, of_groups in [
        (198, 198, 2, 2),
        (147, 139, 1, 1),
        (400, 100, 2, 2),
        (100, 400, 2, 2),
        (520, 512, 10, 9),
        (1, 1, 1, 1),
    ]:
        for capability, wanted in ((80, blocks), (90, of_groups)):
            turned, variant = outer_choice(2, rows, columns, False, capability)
            assert variant.blocks(*((columns, rows) if turned else (rows, columns))) == wanted


def test_an_unknown_gpu_gets_what_the_known_ones_before_it_have() -> None:
    assert block_memory(87) <= min(block_memory(80), block_memory(86))
    assert fitting(problem("mist", False, 139), 120).shared_memory <= block_memory(120)


def test_a_layer_whose_sums_do_not_fit_is_refused() -> None:
    periods = DELAYS["clockwork"]
    assert cuda._has_room("clockwork", False, 256, periods, False, 90)
    assert not cuda._has_room("clockwork", False, 1024, periods, True, 90)
    for name in ("rnn", "lstm", "gru", "mist", "narx"):
        delays = DELAYS.get(name, ())
        assert cuda._has_room(name, False, 1024, delays, False, 90)
        assert cuda._has_room(name, True, 512, delays, False, 90)


def test_few_sequences_are_spread_while_multiprocessors_are_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choices, "capability_of", lambda device: 90)
    monkeypatch.setattr(choices, "multiprocessors", lambda device: 132)
    device = torch.device("cuda")
    asked = [(139, 1, 100, 3), (139, 5, 100, 2), (139, 50, 100, 1), (64, 1, 100, 1), (198, 1, 1, 4), (512, 4, 100, 8)]
    for hidden, trials, batch, expected in asked:
        for backward in (False, True):
            found = choices.choose(problem("mist", backward, hidden), trials, batch, device)
            assert found.launch.cluster == expected
            told = choices.choose(problem("mist", backward, hidden), 1000, batch, device, expected)
            assert (told.launch.cluster, told.launch.rows) == (expected, 8)


def test_known_layers_are_shared_by_blocks_as_it_was_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choices, "capability_of", lambda device: 90)
    monkeypatch.setattr(choices, "multiprocessors", lambda device: 132)
    for name, hidden, cluster in (("lstm", 139, 3), ("lstm", 100, 1), ("narx", 64, 2)):
        for backward in (False, True):
            found = choices.choose(problem(name, backward, hidden), 50, 100, torch.device("cuda"))
            assert found.cluster == cluster


def test_sequences_have_blocks_of_their_own_while_multiprocessors_are_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choices, "capability_of", lambda device: 90)
    monkeypatch.setattr(choices, "multiprocessors", lambda device: 132)

    def rows(
        trials: int, batch: int, backward: bool = False, name: str = "mist", hidden: int = 139, **options: Any
    ) -> int:
        asked = problem(name, backward, hidden, **options)
        return choices.choose(asked, trials, batch, torch.device("cuda")).launch.rows

    assert [rows(1, 1), rows(1, 44), rows(1, 45), rows(11, 4), rows(132, 1), rows(133, 1)] == [1, 1, 8, 1, 1, 8]
    assert [rows(1, 132, parts=3), rows(1, 133, parts=3)] == [1, 8]
    assert [rows(1, batch, name="rnn", hidden=198, parts=3) for batch in (100, 132, 133)] == [1, 1, 8]
    assert rows(1, 1, backward=True) == 8
    assert rows(1, 1, parts=1) == 8
    assert rows(1, 1, parts=0, double=True) == 8


def test_a_sequence_alone_has_more_warps_where_registers_are_short() -> None:
    def ranges(name: str, hidden: int, cluster: int, **options: Any) -> int:
        return alone(fitting(problem(name, False, hidden, parts=3, **options), 90, cluster)).launch.ranges

    assert [ranges("mist", 139, 3), ranges("lstm", 100, 2), ranges("lstm", 139, 3)] == [1, 1, 2]
    assert ranges("lstm", 139, 3, norm=True) == 1


def test_records_of_a_sequence_alone_lie_where_the_run_backwards_looks() -> None:
    forward, backward = (fitting(problem("mist", way, 139, parts=3), 90, 3) for way in (False, True))
    for batch in (1, 8, 9):
        assert alone(forward).saved_blocks(batch) == backward.blocks(batch) == backward.saved_blocks(batch)
        assert alone(forward).blocks(batch) == batch
    assert alone(forward).saved_size(10) == backward.saved_size(10)


def test_one_choice_serves_both_directions() -> None:
    for hidden in (139, 300, 512, 1000):
        forward, backward = (fitting(problem("lstm", way, hidden), 90) for way in (False, True))
        assert forward.launch == backward.launch
        assert forward.saved_size(10) == backward.saved_size(10)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MISTRNN_CACHE", str(tmp_path / "kernels"))
    return tmp_path / "kernels"


SMALL = Variant(problem("rnn", False, 8), Launch(), 90)


def test_compiled_kernels_are_kept_and_a_damaged_one_is_made_again(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = _nvrtc.settled(SMALL)[1]
    (kept,) = cache.iterdir()
    assert kept.stem == _nvrtc.key(SMALL)
    compile_now = _nvrtc.compile_now
    monkeypatch.setattr(_nvrtc, "compile_now", None)
    assert _nvrtc.settled(SMALL)[1] == code  # from the disk
    monkeypatch.setattr(_nvrtc, "compile_now", compile_now)
    kept.write_bytes(kept.read_bytes()[:-100])
    assert _nvrtc.settled(SMALL)[1] == code
    assert hashlib.sha256(kept.read_bytes()[32:]).digest() == kept.read_bytes()[:32]


def test_the_key_follows_source_architecture_and_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = {
        _nvrtc.key(SMALL),
        _nvrtc.key(Variant(SMALL.problem, SMALL.launch, 100)),
        _nvrtc.key(Variant(problem("rnn", True, 8), SMALL.launch, 90)),
    }
    _, nvrtc = _nvrtc.bindings()
    monkeypatch.setattr(nvrtc, "nvrtcVersion", lambda: (0, 99, 1))
    assert len(keys | {_nvrtc.key(SMALL)}) == 4


def test_without_a_place_to_keep_them_kernels_still_compile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("MISTRNN_CACHE", str(tmp_path / "file/kernels"))
    assert _nvrtc.settled(SMALL)[1][:4] == b"\x7fELF"


def test_without_a_home_kernels_still_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    for name in ("MISTRNN_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(Path, "home", homeless)
    assert _nvrtc.settled(SMALL)[1][:4] == b"\x7fELF"
    monkeypatch.setenv("XDG_CACHE_HOME", "/caches")
    assert _nvrtc.folder() == Path("/caches/mistrnn/kernels")


def test_a_kernel_that_cannot_be_kept_leaves_nothing_behind(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError("No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("os.replace", full)
        assert _nvrtc.settled(SMALL)[1][:4] == b"\x7fELF"
    assert list(cache.iterdir()) == []
    _nvrtc.settled(SMALL)
    (kept,) = cache.iterdir()
    assert kept.stat().st_mode & 0o777 == 0o644  # for all who share the folder


def _compile(folder: str) -> str:
    import os

    os.environ["MISTRNN_CACHE"] = folder
    return hashlib.sha256(_nvrtc.settled(SMALL)[1]).hexdigest()


def test_several_processes_may_compile_at_once(cache: Path) -> None:
    with multiprocessing.get_context("spawn").Pool(3) as pool:
        found = pool.map(_compile, [str(cache)] * 6)
    assert len(set(found)) == 1
    assert [path.suffix for path in cache.iterdir()] == [".cubin"]


def test_a_mistake_in_a_kernel_is_told_in_the_compilers_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Variant, "source", "this is no program")
    with pytest.raises(_nvrtc.CompileError, match=r"expected Variant.* to compile.*\n.*mistrnn.cu"):
        _nvrtc.compile_now(SMALL)


def test_missing_bindings_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> Any:
        raise ImportError

    monkeypatch.setattr(_nvrtc, "bindings", missing)
    assert "pip install 'mistrnn[cuda]'" in str(_nvrtc.problem(90))
