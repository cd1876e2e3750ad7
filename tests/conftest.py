"""What all tests share: the machine's quirks, the GPU marker, hypothesis settings."""

import os
import signal

# torch 2.13's bf16 matrix products die with an illegal instruction (SIGILL) on some virtual CPUs. Capping oneDNN's
# instruction set avoids that; it must happen before torch is loaded.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")

import hypothesis
import pytest
import torch

# A shell lets what it starts in the background ignore Ctrl-C, and so would the commands that tests start and interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

SKIPPED_MARKERS = {"default": ("extended", "slow"), "extended": ("slow",), "all": ()}
TESTS_THAT_RUN = {"extended": "extended", "slow": "all"}

torch.set_num_threads(1)  # tests run in parallel processes, one per core

# The same examples on every machine and every run; a deadline would only measure how busy the machine is.
hypothesis.settings.register_profile("default", deadline=None, derandomize=True, max_examples=20, print_blob=True)
hypothesis.settings.register_profile("gpu", hypothesis.settings.get_profile("default"), max_examples=6)
hypothesis.settings.load_profile("default")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("markexpr") == "gpu":  # where every example has kernels of its own to compile
        hypothesis.settings.load_profile("gpu")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for marker in SKIPPED_MARKERS[os.environ.get("MISTRNN_TESTS", "default")]:
        skip = pytest.mark.skip(reason=f"{marker}: MISTRNN_TESTS={TESTS_THAT_RUN[marker]} runs it")
        for item in items:
            if marker in item.keywords:
                item.add_marker(skip)
    if torch.cuda.is_available():
        return
    skip = pytest.mark.skip(reason="no CUDA device here")
    for item in items:
        if "gpu" in item.keywords:
            item.add_marker(skip)
