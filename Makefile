# Every target sets up .venv. PYTHON chooses the interpreter (3.11 or newer).
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Each worker collects all tests, so there is one for each core. The tests of a file share fixtures, so they run in one
# worker; tests/conftest.py has the order of the files, which xdist would change.
WORKERS := $(shell getconf _NPROCESSORS_ONLN)
PYTEST = $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder
# --fresh-env reads every page again, because Sphinx warns about a page only when it reads it.
SPHINX = $(BIN)/python -m sphinx --quiet --fail-on-warning --keep-going --fresh-env -c docs
export NLU_DATA ?= ../shared/data
# Tests start hundreds of processes; without bytecode each would compile every module again.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help train test test-thorough test-services test-slurm test-cases test-versions bench bench-quick bench-cuda lint format typecheck check dist notes docs docs-links clean

help: ## list the targets
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  \1\t/' | expand -t 16

train: $(VENV)/.run ## train the default experiment: a small pretrained model on Chinese reviews
	$(BIN)/python -m nlu.train precision=auto

test: $(VENV)/.dev ## run the tests on all cores (5 minutes on 2); of many alike a sample, and nothing that needs servers
	$(PYTEST)

# Tests with servers mostly wait, so they run at the same time; their output is shown at the end.
test-thorough: $(VENV)/.services ## run every test: all products of features, all kills, all that need servers (for a release)
	$(PYTEST) -m "not services and not slurm"
	$(MAKE) --jobs=3 --keep-going --output-sync=target THOROUGH=--thorough test-services test-slurm test-cases

test-services: $(VENV)/.services ## test shared storages on PostgreSQL and an S3 server, which it starts and stops
	$(BIN)/python tests/services/run.py $(THOROUGH)

test-slurm: $(VENV)/.dev ## test jobs on a real Slurm of two virtual nodes, which it installs (as root), starts and stops
	$(BIN)/python tests/slurm/run.py $(THOROUGH)

test-cases: $(VENV)/.dev ## read files as people have them (2 minutes), and compare with what is right: tests/cases
	$(BIN)/python tests/cases.py

# The suites that every implementation of a seam passes, under each Python: what a new version breaks shows there.
CONTRACTS = $(wildcard tests/*/test_contract.py tests/launchers/*/test_contract.py) tests/test_install.py \
	tests/models/test_batch_independence.py tests/losses/test_by_row.py $(wildcard tests/training/test_resum*.py)

# A version is looked for as python3.X, also where pyenv keeps it. One that is missing is named, the others are tried,
# and the target fails. TORCH chooses the one to try: make test-versions VERSIONS=3.11 TORCH=torch==2.15.0
VERSIONS ?= 3.11 3.12 3.13
TORCH ?= torch==2.13.0
test-versions: ## test the contracts with Python 3.11 to 3.13, each in a separate environment (40 minutes the first time)
	@missing=; for version in $(VERSIONS); do python=; \
	  for one in python$$version $${PYENV_ROOT:-$$HOME/.pyenv}/versions/$$version.*/bin/python; do \
	    if "$$one" -c pass 2>/dev/null; then python=$$one; fi; done; \
	  if [ -z "$$python" ]; then echo "python$$version is missing"; missing="$$missing $$version"; continue; fi; \
	  $(MAKE) VENV=.venv-$$version PYTHON=$$python WORKERS=$(WORKERS) test-contracts || missing="$$missing $$version"; \
	done; if [ -n "$$missing" ]; then echo "not passed:$$missing"; exit 1; fi

.PHONY: test-contracts
test-contracts: $(VENV)/.dev
	$(BIN)/python --version
	$(PYTEST) $(CONTRACTS)

bench: $(VENV)/.bench ## measure speed against peers in full (30 minutes), and write outputs/bench.md
	$(BIN)/python benchmarks/all.py --write outputs/bench.md

bench-quick: $(VENV)/.bench ## print the main ratios (3 to 6 minutes on 2 cores)
	$(BIN)/python benchmarks/all.py --quick

bench-cuda: ## test and measure on a CUDA device, at most 10 minutes, and write benchmarks/CUDA.md; says so if there is none
	@if [ -e /dev/nvidiactl ]; then $(MAKE) $(VENV)/.cuda && $(BIN)/python benchmarks/cuda.py; \
	else echo "this machine has no CUDA device, so nothing is tested or measured"; fi

lint: $(VENV)/.dev ## check style
	$(BIN)/ruff check .
	$(BIN)/ruff format --check nlu tests launchers

format: $(VENV)/.dev ## format the code
	$(BIN)/ruff format nlu tests launchers
	$(BIN)/ruff check --fix .

typecheck: $(VENV)/.dev ## check types
	$(BIN)/mypy
	cd launchers && ../$(BIN)/mypy --config-file ../setup.cfg --explicit-package-bases --namespace-packages --package hydra_plugins

check: lint typecheck test ## lint, typecheck and test

dist: $(VENV)/.dist ## build sdist and wheel into dist/, and test the wheel in a separate environment (7 minutes)
	$(BIN)/python tests/distribution.py

notes: $(VENV)/.dist ## fold changes/*.md into CHANGELOG.md as the notes of a release: make notes VERSION=0.3.0
	$(BIN)/python -m towncrier build --yes --version $(VERSION)

docs: $(VENV)/.docs ## build the site of the docs into docs/_build/html (a minute); fails on any wrong page or link
	rm -rf docs/_build
	$(SPHINX) -b html . docs/_build/html

docs-links: $(VENV)/.docs ## check every external link of the docs; needs the network
	$(SPHINX) -b linkcheck . docs/_build/links

clean: ## remove the environment, caches and build results, but not outputs
	rm -rf $(VENV) .venv-* build dist docs/_build docs/api *.egg-info .pytest_cache .ruff_cache .mypy_cache .hypothesis

# Without an NVIDIA device, install the CPU build of torch; a plain "torch" would download gigabytes of CUDA.
$(VENV)/.run: setup.cfg setup.py pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	command -v nvidia-smi >/dev/null 2>&1 || $(BIN)/pip install --quiet $(TORCH)
	$(BIN)/pip install --quiet --constraint constraints.txt --editable .
	touch $@

# The extras of setup.cfg that each marker installs for its targets.
EXTRAS_dev := dev,hf,model2vec,onnx,pai,peft,sentence-transformers,serve,zh
EXTRAS_bench := bench,serve
EXTRAS_cuda := dev,hf,model2vec,onnx,pai,peft,sentence-transformers,serve,zh,bench
EXTRAS_services := dev,docs,errors,hf,mlflow,model2vec,onnx,pai,peft,sentence-transformers,serve,services,tensorboard,tf,wandb,zh
EXTRAS_dist := dist
EXTRAS_docs := docs

$(addprefix $(VENV)/.,dev bench cuda services dist docs): $(VENV)/.%: $(VENV)/.run
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[$(EXTRAS_$*)]'
	touch $@
