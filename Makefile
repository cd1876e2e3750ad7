# Two commands do everything: `make demo` and `make test`. Each sets up .venv on first use.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test test-all bench bench-accuracy bench-engines bench-gpu lint types contracts check constraints clean

# The demo needs little: it uses .venv if that is set up, and else a smaller environment of its own.
DEMO_VENV := $(if $(wildcard .venv/ready),.venv,.venv-demo)
demo: $(DEMO_VENV)/ready
	$(DEMO_VENV)/bin/mist demo

# One process per core, each with one thread: the tensors are too small to share.
test: .venv/ready
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --maxprocesses 8

# Also the tests marked `extended`, which CI runs.
test-all: export MISTRNN_TESTS ?= extended
test-all: test

# No speed is reported unless the tests of what is measured are green. Where there is a GPU, it is measured, too.
bench: .venv/ready
	$(BIN)/python benchmarks/cpu.py
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests/training/test_group.py
	$(BIN)/python benchmarks/sweep.py
	@if $(BIN)/python -c "import sys, torch; sys.exit(not torch.cuda.is_available())"; then $(MAKE) bench-gpu; fi

# Test accuracy of the default estimators and of rivals. Recordings and archive files are read from $MISTRNN_DATA.
bench-accuracy: .venv/ready
	$(BIN)/python benchmarks/accuracy/run.py
	$(BIN)/python benchmarks/accuracy/table.py

# A sweep on workers of a Ray cluster beside one in a single process.
bench-engines: .venv/ready
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests/training/test_pool.py
	$(BIN)/python benchmarks/engines.py

# The speed on a GPU alone.
bench-gpu: .venv/ready
	$(BIN)/python -m pytest tests/kernels/test_cuda.py
	$(BIN)/python benchmarks/gpu.py

# What CI runs beside the tests.
check: lint types contracts

lint: .venv/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: .venv/ready
	$(BIN)/mypy

contracts: .venv/ready
	$(BIN)/lint-imports

# The versions come from constraints.txt; whatever is newer than the environment updates it: settings or compiled code.
COMPILED := hatch_build.py $(wildcard src/mistrnn/kernels/cpu/*.h src/mistrnn/kernels/cpu/*.cpp src/mistrnn/layers/*/cpu.h)
.venv/ready: pyproject.toml constraints.txt $(COMPILED)
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	touch $@

# The pinned versions anew: the newest that pip chooses for everything.
constraints:
	$(PYTHON) -m venv build/constraints
	build/constraints/bin/python -m pip install --quiet '.[dev]'
	@{ head -n 1 constraints.txt; build/constraints/bin/python -m pip freeze --exclude mistrnn | sed 's/+cpu//'; } \
		> build/constraints.txt
	mv build/constraints.txt constraints.txt

# The demo runs on the CPU, and torch's build with CUDA takes gigabytes. Where the CPU build cannot be had, pip takes the other.
.venv-demo/ready: pyproject.toml constraints.txt $(COMPILED)
	$(PYTHON) -m venv .venv-demo
	-.venv-demo/bin/python -m pip install --quiet --retries 1 --no-deps --constraint constraints.txt \
		--index-url https://download.pytorch.org/whl/cpu torch
	.venv-demo/bin/python -m pip install --quiet --constraint constraints.txt --editable '.[experiments]'
	touch $@

clean:
	rm -rf .venv .venv-demo site build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
