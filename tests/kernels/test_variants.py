"""The GPU kernels as programs: every variant compiles for every architecture, on a machine without a GPU."""

import hashlib
import multiprocessing
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from mistrnn.kernels.cell import cell
from mistrnn.kernels.contract import SavedLayout
from mistrnn.kernels.cuda import backend as cuda
from mistrnn.kernels.cuda import heuristics, jit
from mistrnn.kernels.cuda.heuristics import choose_wgrad, serves_single_sequences, single_sequence, smallest_fit
from mistrnn.kernels.cuda.persistent.variant import Launch, Variant
from mistrnn.kernels.cuda.problem import Problem
from mistrnn.kernels.cuda.program import OLDEST_WITH_CLUSTERS, block_memory
from mistrnn.kernels.cuda.wgrad.variant import WarpgroupWgrad, WgradVariant
from tests.layers.cases import every_cuda_layer

ARCHITECTURES = (80, 90, 100)
DELAYS = {"mist": tuple(2**k for k in range(8)), "narx": tuple(range(1, 9)), "clockwork": tuple(2**k for k in range(8))}

every_architecture = pytest.mark.parametrize("capability", ARCHITECTURES)


def problem(name: str, backward: bool, hidden: int, splits: int = 2, **options: Any) -> Problem:
    delays = DELAYS.get(name, ())
    memory = cell(name).memory(delays)
    options = {"fused_input": True, "bias_hn": name == "gru"} | options
    return Problem(cell(name), backward, hidden, delays=delays, memory=memory, splits=splits, **options)


def max_hidden_without_clusters(name: str) -> int:
    kernels = cell(name).cuda
    assert kernels is not None
    return kernels.max_hidden_without_clusters


def spilled(variant: Variant | WgradVariant) -> int:
    """Return the bytes of registers that the compiled kernel spills."""
    spare, _, log = jit._compile_without_spills(variant)
    found = jit._with_spare(variant, spare)
    if isinstance(found, Variant):
        assert found.shared_memory <= block_memory(found.capability)
        assert found.threads <= 1024
    numbers = re.findall(r"(\d+) bytes spill", log)
    assert len(numbers) >= 2
    return sum(map(int, numbers))


@every_cuda_layer
@pytest.mark.parametrize(
    ("capability", "hidden"), [(80, 139), (80, 1024), (90, 139), (90, 512), (90, 1024), (100, 139), (100, 1024)]
)
def test_variant_of_any_size_spills_no_registers(name: str, capability: int, hidden: int) -> None:
    hidden -= hidden % 8 if name == "clockwork" else 0
    if capability < OLDEST_WITH_CLUSTERS:
        hidden = min(hidden, max_hidden_without_clusters(name))
    for backward in (False, True):
        assert spilled(smallest_fit(problem(name, backward, hidden), capability)) == 0


@every_cuda_layer
@pytest.mark.parametrize(("capability", "hidden"), [(80, 139), (90, 139), (90, 1024), (100, 139)])
def test_variant_with_several_inputs_spills_no_registers(name: str, capability: int, hidden: int) -> None:
    hidden -= hidden % 8 if name == "clockwork" else 0
    if capability < OLDEST_WITH_CLUSTERS:
        hidden = min(hidden, max_hidden_without_clusters(name))
    assert spilled(smallest_fit(problem(name, False, hidden, fused_input=False), capability)) == 0


@every_cuda_layer
@pytest.mark.parametrize("capability", [90, 100])
@pytest.mark.parametrize(("hidden", "cluster"), [(100, 2), (139, 3), (198, 4)])
def test_variant_of_few_sequences_spills_no_registers(name: str, capability: int, hidden: int, cluster: int) -> None:
    hidden -= hidden % 8 if name == "clockwork" else 0
    for backward in (False, True):
        variant = smallest_fit(problem(name, backward, hidden), capability, cluster)
        assert variant.launch.cluster >= cluster
        assert spilled(variant) == 0


@every_cuda_layer
@every_architecture
def test_variant_with_three_splits_spills_no_registers(name: str, capability: int) -> None:
    for backward in (False, True):
        assert spilled(smallest_fit(problem(name, backward, 128, splits=3), capability)) == 0


@every_cuda_layer
@pytest.mark.parametrize(("capability", "hidden"), [(80, 100), (90, 100), (90, 512), (100, 100)])
def test_variant_with_a_single_sequence_spills_no_registers(name: str, capability: int, hidden: int) -> None:
    hidden -= hidden % 8 if name == "clockwork" else 0
    if capability < OLDEST_WITH_CLUSTERS:
        hidden = min(hidden, 128)
    found = smallest_fit(
        problem(name, False, hidden, splits=3), capability, 1 if capability < OLDEST_WITH_CLUSTERS else 2
    )
    assert spilled(single_sequence(found)) == 0


@every_cuda_layer
@every_architecture
def test_variant_with_every_option_compiles(name: str, capability: int) -> None:
    options: list[dict[str, Any]] = [
        {
            "fused_input": False,
            "norm": True,
            "reset": True,
            "lengths": True,
            "reverse": True,
            "zoneout": 1,
            "dropout": True,
        },
        {"fused_input": False, "zoneout": 2, "bias": False, "save": False},
        {"splits": 0, "double": True},
        {"splits": 1},
    ]
    for chosen in options:
        variants = [smallest_fit(problem(name, backward, 40, **chosen), capability) for backward in (False, True)]
        if serves_single_sequences(variants[0]):
            variants.append(single_sequence(variants[0]))
        for variant in variants:
            code, _ = jit.compile_now(variant)
            assert code[:4] == b"\x7fELF"


def test_compile_now_with_an_empty_log_leaves_shared_bytes_alone() -> None:
    """An empty log is one zero byte, which must not be written into a single-byte object that Python shares."""
    options = {
        "fused_input": False,
        "norm": True,
        "reset": True,
        "lengths": True,
        "reverse": True,
        "zoneout": 1,
        "dropout": True,
    }
    found = [
        jit.compile_now(smallest_fit(problem("mist", backward, 40, **options), 80))[1] for backward in (False, True)
    ]
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
"""Rows and columns of weight gradients, and whether the columns are those of several delays."""


@every_architecture
@pytest.mark.parametrize("splits", [1, 2, 3])
@pytest.mark.parametrize("weights", WEIGHTS)
def test_wgrad_variant_spills_no_registers(weights: tuple[int, int, bool], splits: int, capability: int) -> None:
    _, variant = choose_wgrad(splits, *weights, capability)
    assert spilled(variant) == 0
    assert variant.shared_memory <= block_memory(capability)


@pytest.mark.parametrize("splits", [1, 2])
@pytest.mark.parametrize("weights", [*WEIGHTS, (520, 512, False), (256, 256, False), (300, 100, False), (1, 1, False)])
def test_wgrad_variant_with_warpgroups_spills_no_registers(weights: tuple[int, int, bool], splits: int) -> None:
    _, variant = choose_wgrad(splits, *weights, 90)
    assert isinstance(variant, WarpgroupWgrad)
    assert spilled(variant) == 0
    assert variant.stages >= 3
    assert variant.shared_memory <= block_memory(90)
    # ptxas warns where it serialises wgmma or ignores setmaxnreg.
    assert "Performance Loss" not in jit.compile_now(variant, "--ptxas-options=-v")[1]


def test_wgrad_registers_of_producers_and_consumers_fit_the_register_file() -> None:
    for delays, warpgroups, tiles in [(False, 3, 1), (False, 3, 18), (False, 3, 22), (True, 2, 8), (True, 2, 32)]:
        variant = WarpgroupWgrad(2, delays, 90, warpgroups, tiles)
        consumer, producer = variant.registers
        assert 24 <= consumer <= producer <= 240
        assert consumer % 8 == producer % 8 == 0
        assert 128 * (warpgroups * consumer + producer) <= 65536


def test_choose_wgrad_takes_warpgroups_where_wgmma_exists() -> None:
    def wgmma(splits: int, capability: int) -> bool:
        return isinstance(choose_wgrad(splits, 147, 139, False, capability)[1], WarpgroupWgrad)

    assert [wgmma(splits, 90) for splits in (1, 2, 3)] == [True, True, False]
    assert not wgmma(2, 100)


@pytest.mark.parametrize("splits", [1, 2, 3])
@pytest.mark.parametrize("weights", WEIGHTS)
def test_wgrad_variant_on_a_gpu_with_little_shared_memory_fits(weights: tuple[int, int, bool], splits: int) -> None:
    _, variant = choose_wgrad(splits, *weights, 86)
    assert variant.stages >= 2
    assert variant.shared_memory <= block_memory(86)


def test_choose_wgrad_of_any_size_uses_few_blocks() -> None:
    for rows, columns, blocks, of_warpgroups in [
        (198, 198, 2, 2),
        (147, 139, 1, 1),
        (400, 100, 2, 2),
        (100, 400, 2, 2),
        (520, 512, 10, 9),
        (1, 1, 1, 1),
    ]:
        for capability, wanted in ((80, blocks), (90, of_warpgroups)):
            transposed, variant = choose_wgrad(2, rows, columns, False, capability)
            assert variant.blocks(*((columns, rows) if transposed else (rows, columns))) == wanted


def test_block_memory_of_an_unknown_gpu_is_the_least_known() -> None:
    assert block_memory(87) <= min(block_memory(80), block_memory(86))
    assert smallest_fit(problem("mist", False, 139), 120).shared_memory <= block_memory(120)


def test_has_room_of_a_layer_too_large_for_shared_memory_is_false() -> None:
    periods = DELAYS["clockwork"]
    assert cuda._has_room(cell("clockwork"), False, 256, periods, False, 90)
    assert not cuda._has_room(cell("clockwork"), False, 1024, periods, True, 90)
    for name in ("rnn", "lstm", "gru", "mist", "narx"):
        delays = DELAYS.get(name, ())
        assert cuda._has_room(cell(name), False, 1024, delays, False, 90)
        assert cuda._has_room(cell(name), True, 512, delays, False, 90)


def test_choose_with_idle_multiprocessors_enlarges_the_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heuristics, "capability_of", lambda device: 90)
    monkeypatch.setattr(heuristics, "multiprocessors", lambda device: 132)
    device = torch.device("cuda")
    asked = [(139, 1, 100, 3), (139, 5, 100, 2), (139, 50, 100, 1), (64, 1, 100, 1), (198, 1, 1, 4), (512, 4, 100, 8)]
    for hidden, trials, batch, expected in asked:
        for backward in (False, True):
            found = heuristics.choose(problem("mist", backward, hidden), trials, batch, device)
            assert found.launch.cluster == expected
            layout = SavedLayout(cluster=expected)
            given = heuristics.choose(problem("mist", backward, hidden), 1000, batch, device, layout)
            assert (given.launch.cluster, given.launch.sequences) == (expected, 8)


def test_choose_for_measured_layers_takes_the_declared_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heuristics, "capability_of", lambda device: 90)
    monkeypatch.setattr(heuristics, "multiprocessors", lambda device: 132)
    for name, hidden, cluster in (("lstm", 139, 3), ("lstm", 100, 1), ("narx", 64, 2)):
        for backward in (False, True):
            found = heuristics.choose(problem(name, backward, hidden), 50, 100, torch.device("cuda"))
            assert found.launch.cluster == cluster


def test_choose_with_idle_multiprocessors_takes_single_sequences(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heuristics, "capability_of", lambda device: 90)
    monkeypatch.setattr(heuristics, "multiprocessors", lambda device: 132)

    def sequences(
        trials: int, batch: int, backward: bool = False, name: str = "mist", hidden: int = 139, **options: Any
    ) -> int:
        asked = problem(name, backward, hidden, **options)
        return heuristics.choose(asked, trials, batch, torch.device("cuda")).launch.sequences

    assert [
        sequences(1, 1),
        sequences(1, 44),
        sequences(1, 45),
        sequences(11, 4),
        sequences(132, 1),
        sequences(133, 1),
    ] == [1, 1, 8, 1, 1, 8]
    assert [sequences(1, 132, splits=3), sequences(1, 133, splits=3)] == [1, 8]
    assert [sequences(1, batch, name="rnn", hidden=198, splits=3) for batch in (100, 132, 133)] == [1, 1, 8]
    assert sequences(1, 1, backward=True) == 8
    assert sequences(1, 1, splits=1) == 8
    assert sequences(1, 1, splits=0, double=True) == 8


def test_single_sequence_short_of_registers_splits_k() -> None:
    def split_k(name: str, hidden: int, cluster: int, **options: Any) -> int:
        return single_sequence(
            smallest_fit(problem(name, False, hidden, splits=3, **options), 90, cluster)
        ).launch.split_k

    assert [split_k("mist", 139, 3), split_k("lstm", 100, 2), split_k("lstm", 139, 3)] == [1, 1, 2]
    assert split_k("lstm", 139, 3, norm=True) == 1


def test_single_sequence_saves_in_the_layout_of_the_backward_variant() -> None:
    forward, backward = (smallest_fit(problem("mist", way, 139, splits=3), 90, 3) for way in (False, True))
    for batch in (1, 8, 9):
        assert single_sequence(forward).saved_blocks(batch) == backward.blocks(batch) == backward.saved_blocks(batch)
        assert single_sequence(forward).blocks(batch) == batch
    assert single_sequence(forward).saved_block_size(10) == backward.saved_block_size(10)


def test_smallest_fit_of_both_directions_has_one_launch() -> None:
    for hidden in (139, 300, 512, 1000):
        forward, backward = (smallest_fit(problem("lstm", way, hidden), 90) for way in (False, True))
        assert forward.launch == backward.launch
        assert forward.saved_block_size(10) == backward.saved_block_size(10)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MISTRNN_CACHE", str(tmp_path / "kernels"))
    return tmp_path / "kernels"


SMALL = Variant(problem("rnn", False, 8), Launch(), 90)


def test_compiled_reads_the_cache_and_replaces_a_damaged_entry(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = jit.compiled(SMALL)[1]
    (kept,) = cache.iterdir()
    assert kept.stem == jit.key(SMALL)
    compile_now = jit.compile_now
    monkeypatch.setattr(jit, "compile_now", None)
    assert jit.compiled(SMALL)[1] == code  # from the cache
    monkeypatch.setattr(jit, "compile_now", compile_now)
    kept.write_bytes(kept.read_bytes()[:-100])
    assert jit.compiled(SMALL)[1] == code
    assert hashlib.sha256(kept.read_bytes()[32:]).digest() == kept.read_bytes()[:32]


def test_key_depends_on_source_architecture_and_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = {
        jit.key(SMALL),
        jit.key(Variant(SMALL.problem, SMALL.launch, 100)),
        jit.key(Variant(problem("rnn", True, 8), SMALL.launch, 90)),
    }
    _, nvrtc = jit.bindings()
    monkeypatch.setattr(nvrtc, "nvrtcVersion", lambda: (0, 99, 1))
    assert len(keys | {jit.key(SMALL)}) == 4


def test_compiled_without_a_writable_cache_compiles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("MISTRNN_CACHE", str(tmp_path / "file/kernels"))
    assert jit.compiled(SMALL)[1][:4] == b"\x7fELF"


def test_compiled_without_a_home_compiles(monkeypatch: pytest.MonkeyPatch) -> None:
    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    for name in ("MISTRNN_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(Path, "home", homeless)
    assert jit.compiled(SMALL)[1][:4] == b"\x7fELF"
    monkeypatch.setenv("XDG_CACHE_HOME", "/caches")
    assert jit.folder() == Path("/caches/mistrnn/kernels")


def test_compiled_on_a_full_disk_leaves_no_file(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError("No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("os.replace", full)
        assert jit.compiled(SMALL)[1][:4] == b"\x7fELF"
    assert list(cache.iterdir()) == []
    jit.compiled(SMALL)
    (kept,) = cache.iterdir()
    assert kept.stat().st_mode & 0o777 == 0o644  # users may share the folder


def _compile(folder: str) -> str:
    import os

    os.environ["MISTRNN_CACHE"] = folder
    return hashlib.sha256(jit.compiled(SMALL)[1]).hexdigest()


def test_compiled_in_several_processes_writes_one_entry(cache: Path) -> None:
    with multiprocessing.get_context("spawn").Pool(3) as pool:
        found = pool.map(_compile, [str(cache)] * 6)
    assert len(set(found)) == 1
    assert [path.suffix for path in cache.iterdir()] == [".cubin"]


def test_compile_now_of_a_wrong_program_raises_with_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Variant, "source", "this is no program")
    with pytest.raises(jit.CompileError, match=r"expected Variant.* to compile.*\n.*mistrnn.cu"):
        jit.compile_now(SMALL)


def test_obstacle_without_bindings_names_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> Any:
        raise ImportError

    monkeypatch.setattr(jit, "bindings", missing)
    assert "pip install 'mistrnn[cuda]'" in str(jit.obstacle(90))
