# make demo    a fresh machine to a training run that explains itself
# make test    a fresh machine to a green test run
PYTHON ?= python3
VENV ?= .venv
PY := $(VENV)/bin/python
UV = $(shell command -v uv || echo $(VENV)/bin/uv)
STAMP := $(VENV)/.installed-dev
DEMO_STAMP := $(VENV)/.installed-demo
READERS := .cache/readers
FRAMEWORKS := .cache/frameworks
DIST := .cache/dist
TRACKERS := .cache/trackers
PEERS := .cache/peers
RECORDER := hatch_build.py $(wildcard voirkit/trace/*.c voirkit/probes/*.[ch] instruments/voirkit_instruments/*/*.[ch])
IMAGES := examples/resnet/images
export OMP_NUM_THREADS ?= 1
# Hundreds of tests import torch in a process of its own: it is compiled once, also where PYTHONDONTWRITEBYTECODE is set.
export UV_COMPILE_BYTECODE ?= 1

.PHONY: demo test test-long test-long-instruments test-long-others test-all test-slow test-readers test-frameworks test-trackers test-peers test-sanitize test-gpu fuzz packages contracts matrix matrix-newest lint format types docs benchmarks bench acceptance check clean

demo: $(DEMO_STAMP)
	$(PY) examples/resnet/make_images.py
	$(VENV)/bin/voirkit --train-rate --loading-rate --compute-rate examples/resnet/main.py

# What neither takes minutes nor needs an environment or a device of its own; of it, files that take seven seconds or more run apart.
FAST := not slow and not readers and not frameworks and not trackers and not gpu
test: $(STAMP)
	$(PY) -m pytest -n 2 --dist worksteal -m "$(FAST) and not long"

# The machine that checks a change runs a part of these.
test-long: test-long-instruments test-long-others

test-long-instruments: $(STAMP)
	$(PY) -m pytest -n 2 --dist worksteal -m "$(FAST) and long" tests/instruments

test-long-others: $(STAMP)
	$(PY) -m pytest -n 2 --dist worksteal -m "$(FAST) and long" --ignore=tests/instruments

test-all: test test-long test-slow test-readers test-frameworks test-trackers test-sanitize matrix matrix-newest

# What measures has the machine for itself, what only takes long shares it.
ALONE := tests/instruments/test_what_if_workers.py
PACKAGES := tests/test_packages.py
test-slow: $(STAMP)
	$(PY) -m pytest -m slow $(ALONE)
	$(PY) -m pytest -m slow -n 2 --dist worksteal $(addprefix --ignore=,$(ALONE) $(PACKAGES))

# The tools that read exports, each in an environment of its own: DFAnalyzer, Perfetto, TrainCheck.
test-readers: $(STAMP)
	UV="$(UV)" PYTHON="$(PY)" bash tests/report/readers/make.sh $(READERS)
	VOIRKIT_READERS=$(READERS) $(PY) -m pytest -m readers tests/report
	bash tests/acceptance.sh annotations

# Training with Lightning, accelerate and transformers, in an environment of their own.
test-frameworks: $(STAMP)
	UV="$(UV)" PYTHON="$(PY)" bash tests/environment.sh $(FRAMEWORKS) frameworks
	$(FRAMEWORKS)/bin/python -m pytest -m frameworks tests/frameworks

# TensorBoard, MLflow and W&B read back what was written for them, in an environment of their own.
test-trackers: $(STAMP)
	UV="$(UV)" PYTHON="$(PY)" bash tests/environment.sh $(TRACKERS) trackers
	$(TRACKERS)/bin/python -m pytest -n 2 -m "trackers and not torch" tests/trackers

# The tests of the projects that voirkit takes names from, in an environment of their own; their tests come from a package index.
test-peers: $(STAMP)
	UV="$(UV)" PYTHON="$(PY)" bash tests/environment.sh $(PEERS) peers
	bash tests/acceptance.sh peers

# What is written in C, with the compiler's checks of memory and of undefined behaviour.
test-sanitize: $(STAMP)
	UV="$(UV)" PYTHON="$(PY)" bash tests/sanitize.sh .cache/sanitize

# A million inputs for each reader of other people's files, in an hour of one core; FUZZ=selector for one of them.
FUZZ ?= segment strace selector configuration summary report
fuzz: $(STAMP)
	for target in $(FUZZ); do $(PY) tests/fuzz/run.py $$target || exit 1; done

# On a machine with a CUDA device, in minutes; without one it is skipped, and says so.
test-gpu: $(STAMP)
	$(PY) -m pytest -m gpu tests/gpu

# What is published, built as it will be: looked into, and installed into environments of their own, with nothing of the checkout.
packages: $(STAMP)
	rm -rf $(DIST)
	$(UV) build --quiet --python $(PY) --out-dir $(DIST)
	VOIRKIT_NO_EXTENSION=1 $(UV) build --quiet --python $(PY) --wheel --out-dir $(DIST) $(DIST)/voirkit-*.tar.gz
	$(VENV)/bin/twine check --strict $(DIST)/*.whl $(DIST)/*.tar.gz
	UV="$(UV)" VOIRKIT_DIST=$(abspath $(DIST)) $(PY) -m pytest -m slow $(PACKAGES)

# What weaves and records, on the oldest Python and on the newest.
contracts: $(STAMP)
	CONTRACTS=1 bash tests/matrix.sh
	CONTRACTS=1 bash tests/matrix_newest.sh

matrix: $(STAMP)
	bash tests/matrix.sh

# The newest Python that Debian has, where there is none here: in a folder that root can make, with a network.
matrix-newest: $(STAMP)
	bash tests/matrix_newest.sh

lint: $(STAMP)
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/lint-imports

format: $(STAMP)
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .
	$(PY) docs/make_architecture.py
	$(PY) docs/make_man_page.py

types: $(STAMP)
	$(VENV)/bin/mypy

docs: $(STAMP)
	$(VENV)/bin/sphinx-build -W --keep-going -n -q -d .cache/doctrees docs .cache/site

benchmarks: $(STAMP)
	$(PY) benchmarks/startup.py
	$(PY) benchmarks/rates.py
	$(PY) benchmarks/steps.py
	$(PY) benchmarks/loader.py
	$(PY) benchmarks/calls.py
	$(PY) examples/resnet/make_images.py && $(PY) benchmarks/overhead.py
	$(PY) benchmarks/probes.py
	$(PY) benchmarks/annotations.py
	$(PY) benchmarks/at_rest.py
	$(PY) benchmarks/trace.py
	$(PY) benchmarks/live.py
	$(PY) benchmarks/parameters.py
	$(PY) benchmarks/syscalls.py
	$(PY) benchmarks/what_if_read.py
	$(PY) benchmarks/compare.py

# Beside the tools that somebody would use instead, each in an environment of its own: Markdown tables. Some 40 minutes, on a machine with nothing else to do.
bench: $(STAMP)
	$(PY) benchmarks/peers/environments.py
	$(PY) benchmarks/peers/events.py
	$(PY) benchmarks/peers/accuracy.py
	$(PY) benchmarks/peers/answers.py
	$(PY) examples/resnet/make_images.py && $(PY) benchmarks/overhead.py --peers

# Checks that are kept outside the repository; run where they are present.
ACCEPTANCE ?= badinput crash probes programs truth reports house
acceptance: $(STAMP)
	bash tests/acceptance.sh $(ACCEPTANCE)

check: lint types test-all docs packages acceptance

clean:
	rm -rf .cache voirkit-runs build dist

$(PY):
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 10) else "voirkit needs Python 3.10 or newer; this is " + sys.version.split()[0] + ". Name another: make PYTHON=python3.12 ...")'
	$(PYTHON) -m venv $(VENV)
	command -v uv >/dev/null || $(PY) -m pip install --quiet uv

$(DEMO_STAMP): $(PY) pyproject.toml $(RECORDER)
	$(UV) pip install --quiet --python $(PY) -e '.[torch]'
	touch $@

$(STAMP): $(PY) pyproject.toml $(RECORDER)
	$(UV) pip install --quiet --python $(PY) -e '.[dev,docs]'
	$(PY) -m compileall -q voirkit instruments
	touch $@ $(DEMO_STAMP)
