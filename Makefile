# The two commands: `make demo` and `make test`. Both make the venv and install what they need, the demo much less.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
DEMO   := $(VENV)/.installed-demo
STAMP  := $(VENV)/.installed
WORKERS = OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile

.PHONY: demo gpu test test-slow test-oldest test-newest torture audit lint docs clean

$(DEMO): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "antishortcut needs Python 3.11 or newer (set PYTHON=…)"; exit 2; }
	@echo "Installing antishortcut into $(VENV): torch and some 90 packages, 6 GB with CUDA; takes minutes, and pip says what it does"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip -c constraints.txt
	$(BIN)/python -m pip install -c constraints.txt -e '.[report,export]'
	@touch $@

$(STAMP): $(DEMO)
	@echo "Installing what the tests, examples and docs need besides: Ray, wandb, transformers, playwright, mkdocs …: 1 GB"
	$(BIN)/python -m pip install -c constraints.txt -e '.[dev]'
	@touch $@

demo: $(DEMO)
	@echo "Running the demo: a teacher and four students on drawn images; some four minutes on two cores"
	$(BIN)/asd demo

# Does everything work on this GPU, and how fast? About ten minutes; DEVICE=cpu tries the command itself.
DEVICE ?= cuda
gpu: $(STAMP)
	$(BIN)/asd selftest --device $(DEVICE)

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

docs: $(STAMP)
	$(BIN)/mkdocs build --strict

test: lint
	$(WORKERS) -m 'not slow'

test-slow: lint
	$(WORKERS)

# The lowest versions that pyproject.toml allows, with the extra report alone: the others ask for newer ones of their own.
test-oldest: constraints-oldest.txt
	$(PYTHON) -m venv $(VENV)-oldest
	$(VENV)-oldest/bin/python -m pip install --quiet -c constraints-oldest.txt -e '.[report]' pytest pytest-xdist hypothesis
	OMP_NUM_THREADS=1 $(VENV)-oldest/bin/python -m pytest -n 2 --dist loadfile -m 'not slow' --ignore tests/deployment \
	  --ignore tests/experiments/test_ray_engine.py --deselect tests/cli/test_completion.py::test_names_are_offered_without_torch

# Whatever is newest today, pinned nowhere.
test-newest:
	$(PYTHON) -m venv $(VENV)-newest
	$(VENV)-newest/bin/python -m pip install --quiet --upgrade --upgrade-strategy eager -e '.[dev]'
	OMP_NUM_THREADS=1 $(VENV)-newest/bin/python -m pytest -n 2 --dist loadfile -m 'not slow'

# Known weaknesses of the pinned versions. Strict: a version that nobody could be asked about is a failure, not a pass.
audit:
	$(PYTHON) -m venv $(VENV)-audit
	$(VENV)-audit/bin/python -m pip install --quiet --upgrade pip-audit
	$(VENV)-audit/bin/pip-audit -r constraints.txt --no-deps --disable-pip --strict --progress-spinner off

torture: $(STAMP)
	$(BIN)/python -m torture

clean:
	rm -rf $(VENV) $(VENV)-oldest $(VENV)-newest $(VENV)-audit site .pytest_cache .mypy_cache .ruff_cache .import_linter_cache
