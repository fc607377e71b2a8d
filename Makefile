# Short and without logic: each target calls a script or a command that also works without make.
PYTHON ?= python3
BIN := .venv/bin
.DEFAULT_GOAL := help
.PHONY: help venv demo up dev fmt lint test docs deps image bench

help: ## this list
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 14

venv: ## .venv with everything in it
	@$(PYTHON) scripts/venv.py

demo: venv ## run untrusted code in a sandbox, end to end, and clean up
	@$(PYTHON) scripts/engine.py
	@$(BIN)/primer demo

up: venv ## the server for people: prints its address and what to type next
	-@$(PYTHON) scripts/engine.py
	@$(BIN)/primer up

dev: venv ## environment and database for work on Primer itself
	-@$(PYTHON) scripts/engine.py
	@$(BIN)/primer up --prepare-only

fmt: venv ## format the code
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

lint: venv ## ruff and mypy
	@$(BIN)/python scripts/test.py lint types

test: venv ## every check this machine can run
	@$(BIN)/python scripts/test.py

docs: venv ## write the generated pages anew
	@$(BIN)/python -m primer_site.openapi
	@$(BIN)/python -m primer_site.variables
	@$(BIN)/python -m cli.reference
	@$(BIN)/python -m primer_site.reference
	@$(BIN)/python -m cli.wording

deps: venv ## newest allowed versions into constraints.txt
	@$(BIN)/python scripts/deps.py

image: venv ## build the sandbox image
	@$(PYTHON) scripts/engine.py
	@$(BIN)/primer image build

bench: venv ## measure; compare with docs/benchmarks.md
	@$(BIN)/python scripts/bench.py
