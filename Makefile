# Two commands matter: `make demo` runs the main job on a fresh machine, `make test` passes the tests.
# Both make .venv themselves and need only Python >= 3.11 with venv, make, and a package index.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
OUT := demo-output
export PATH := $(CURDIR)/$(BIN):$(PATH)
# A package cache of the demo's own, so that nothing is written outside the checkout.
demo: export NTOOL_CACHE := $(CURDIR)/$(OUT)/cache

.PHONY: demo test lint format bench bench-peers fuzz completions man clean

$(VENV)/.base: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "ntool needs Python >= 3.11; set PYTHON=python3.12 or so")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable .
	@touch $@

$(VENV)/.test: $(VENV)/.base
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[test]' setuptools wheel
	@touch $@

$(VENV)/.lint: $(VENV)/.test
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[lint]'
	@touch $@

PROMPT := a large red circle on a white background

demo: $(VENV)/.base
	rm -rf $(OUT) && mkdir -p $(OUT)
	@echo '--- look into the checkpoint and count it, from headers alone'
	ntool inspect-headers demo:shapes | ntool census - --format table
	@echo '--- export its five components to ONNX, without PyTorch, and check the package'
	ntool export-component demo:shapes -o $(OUT)/shapes.pkg --format table
	ntool verify-package $(OUT)/shapes.pkg --format table
	@echo '--- prefill the prompt and the empty prompt, then sample from the two prefix files'
	ntool run-prefill $(OUT)/shapes.pkg --task text-to-image --prompt "$(PROMPT)" -o $(OUT)/cond.safetensors > $(OUT)/cond.jsonl
	ntool run-prefill $(OUT)/shapes.pkg --task unconditional -o $(OUT)/uncond.safetensors > $(OUT)/uncond.jsonl
	ntool sample-image $(OUT)/shapes.pkg --prefix $(OUT)/cond.safetensors --prefix-unconditional $(OUT)/uncond.safetensors -o $(OUT)/picture.png > $(OUT)/steps.jsonl
	@echo '--- the short form draws the same bytes'
	ntool sample-image demo:shapes --prompt "$(PROMPT)" -o $(OUT)/short.png > $(OUT)/short.jsonl
	cmp $(OUT)/picture.png $(OUT)/short.png
	@echo '--- a few more on a contact sheet'
	ntool sample-image $(OUT)/shapes.pkg --prompts bench/prompts.jsonl -o $(OUT)/more.png --sheet $(OUT)/sheet.png > $(OUT)/more.jsonl
	@echo '--- ask about the first picture'
	ntool run-prefill $(OUT)/shapes.pkg --prompt "what color is the circle?" --image $(OUT)/picture.png --decode 16 --raw
	@echo
	@echo 'picture:       $(OUT)/picture.png'
	@echo 'contact sheet: $(OUT)/sheet.png'
	@echo 'ntool itself:  $(BIN)/ntool (. $(BIN)/activate puts it on the path)'

test: $(VENV)/.test
	$(BIN)/python -m pytest -n 2 --dist worksteal

lint: $(VENV)/.lint
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	@# mypy wants folders named as they are imported: a shadow tree of links
	rm -rf $(VENV)/typing && mkdir -p $(VENV)/typing/ntool
	ln -s $(CURDIR)/cli/*.py $(CURDIR)/commands $(CURDIR)/lib $(VENV)/typing/ntool/
	MYPYPATH=$(VENV)/typing $(BIN)/mypy -p ntool

format: $(VENV)/.lint
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# Measures everything, writes the page, and fails where a budget is missed by more than 20 %
bench: $(VENV)/.test
	$(BIN)/python -m bench --write docs/benchmarks.md --check

# Other tools to measure beside, each in an environment of its own under .venv-bench. Rows without them are skipped
bench-peers: $(VENV)/.test
	$(BIN)/python -m bench --install-peers


# Each reader for a minute; FUZZ=5 for five seconds
FUZZ ?= 60
fuzz: $(VENV)/.test
	-$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[fuzz]'
	$(BIN)/python -m tests.fuzzing --seconds $(FUZZ)

completions: $(VENV)/.base
	$(BIN)/python -m ntool.completion --write completions

man: $(VENV)/.base
	$(BIN)/python -m ntool.man --write man

clean:
	rm -rf $(VENV) .venv-bench build *.egg-info $(OUT)
