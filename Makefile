# Each target sets up what it needs: Python >= 3.10 (or uv) and make are all the machine must have.
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

# Where it is set, each of the hundreds of processes that tests start would compile all modules anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help demo test test-without-kernels test-system test-all test-spark4 test-rest-clients test-matrix docs simulate safeguards weight mutants lint format bench coverage-page clean
.DEFAULT_GOAL := help

help:
	@echo 'make demo    run the examples: 336,776 flights through PySpark, and as events despite a kill'
	@echo 'make test    lint, types, all tests without real parts, and one or two of each real part'
	@echo 'make test-system  the other tests of real parts: Ray, Spark, Kafka, PostgreSQL, ZooKeeper, browser'
	@echo 'make test-without-kernels  the tests of state, operators and the API, with FLINKRAY_KERNELS=off'
	@echo 'make test-all  all of these, and the slow ones'
	@echo 'make test-spark4  the tests of Spark stages on Spark 4, in an environment of its own'
	@echo 'make test-rest-clients  Flink'"'"'s own command line and schemathesis against the REST endpoint'
	@echo 'make test-matrix  the fast tests with each Python, and with the oldest and newest dependencies'
	@echo 'make simulate  every simulated scenario with SEEDS=10000 seeds'
	@echo 'make safeguards  how many simulated seeds notice that a safeguard is missing'
	@echo 'make weight  how many lines, modules and tests there are, beside the goals'
	@echo 'make mutants  how many small changes of decisions and of the RPC core the tests notice'
	@echo 'make docs    the documentation as a site, in build/site'
	@echo 'make lint    ruff, mypy'
	@echo 'make bench   every benchmark, one after the other'
	@echo 'make format  let ruff format and fix'

# Made once; again when pyproject.toml changes, or an attempt did not finish.
$(READY): pyproject.toml tools/bootstrap
	@echo 'Setting up $(VENV); the first time this takes a few minutes.'
	@tools/bootstrap $(VENV)
	@touch $@

# The compiled kernels, in place; without a C compiler the package works without them.
KERNELS := $(VENV)/.kernels
$(KERNELS): setup.py $(wildcard flinkray/kernels/*.[ch]) $(READY)
	@rm -f flinkray/kernels/*.so
	@$(BIN)/python setup.py --quiet build_ext --inplace
	@ls flinkray/kernels/*.so >/dev/null 2>&1 || ! command -v cc >/dev/null
	@touch $@

demo: $(KERNELS)
	@$(BIN)/python examples/flights_demo.py

docs: $(READY)
	@$(BIN)/python -m mkdocs build --strict --quiet
	@echo 'build/site/index.html'

# How many seeds notice that a safeguard is missing: docs/safeguards.md.
safeguards: $(KERNELS)
	@$(BIN)/pytest --numprocesses 0 -m safeguards $(PYTEST_ARGS)
	@$(BIN)/python -m tools.safeguards --write

weight: $(READY)
	@$(BIN)/python tools/weight.py

# Less than all: make mutants SAMPLE=400 SEED=1 MODULES="scheduler/job flinkray/rpc/mailbox.py"
SEED := 1
mutants: $(KERNELS)
	@$(BIN)/python -m tools.mutants $(MODULES) $(if $(SAMPLE),--sample $(SAMPLE)) --seed $(SEED) $(MUTANTS_ARGS)

LINT := $(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy
lint: $(READY)
	@$(LINT)

# Two processes: one has all tests on Ray, the other takes the rest (tests/two_processes.py); PROCESSES=0
# runs them in one. pytest comes last, so that its summary is what a log ends with.
PROCESSES := 2
PYTEST := $(BIN)/pytest --numprocesses $(PROCESSES) --dist loadscope
FAST := not slow and not safeguards
test: $(KERNELS)
	@mkdir -p build; start=$$(date +%s); $(LINT) && \
	$(PYTEST) -m '$(FAST) and (smoke or not system)' $(PYTEST_ARGS)$(if $(PYTEST_ARGS),, && \
	echo $$(($$(date +%s) - start)) > build/make-test-seconds)

test-system: $(KERNELS)
	@$(PYTEST) -m '$(FAST) and system and not smoke' $(PYTEST_ARGS)

# What the kernels do, without them.
test-without-kernels: $(READY)
	@FLINKRAY_KERNELS=off $(PYTEST) -m '$(FAST) and not system' $(PYTEST_ARGS) \
	    tests/kernels tests/state tests/streaming/operators tests/streaming/test_*.py tests/datastream

test-all: lint
	@$(PYTEST) $(PYTEST_ARGS)

# RayDP cannot be beside Spark 4 (docs/spark.md), so these tests run on the standalone host.
VENV4 := .venv-spark4
$(VENV4)/.ready: pyproject.toml tools/bootstrap tools/spark4_requirements.py
	@echo 'Setting up $(VENV4); the first time this takes a few minutes.'
	@tools/bootstrap --spark4 $(VENV4)
	@touch $@

test-spark4: $(VENV4)/.ready
	@$(VENV4)/bin/pytest --numprocesses 0 tests/spark tests/system/test_spark_job.py $(PYTEST_ARGS)

# Clients of the REST endpoint that are not ours: Flink's command line, and schemathesis.
VENV_CLIENTS := .venv-rest-clients
$(VENV_CLIENTS)/.ready: tests/rest_clients/requirements.txt | $(READY)
	@echo 'Setting up $(VENV_CLIENTS); some 350 MB are downloaded.'
	@$(BIN)/python -m venv --clear $(VENV_CLIENTS)
	@$(VENV_CLIENTS)/bin/pip install --quiet --no-deps $$(grep ^apache-flink $<)
	@$(VENV_CLIENTS)/bin/pip install --quiet --requirement tests/rest_clients/requirements.txt
	@touch $@

test-rest-clients: $(KERNELS) $(VENV_CLIENTS)/.ready
	@FLINKRAY_REST_CLIENTS=$(VENV_CLIENTS) $(BIN)/pytest --numprocesses 0 tests/rest_clients $(PYTEST_ARGS)

# Some of them: make test-matrix ROWS="3.10-oldest 3.13"
ROWS :=
test-matrix: $(READY)
	@$(BIN)/python -m tools.test_matrix $(ROWS) $(if $(PYTEST_ARGS),-- $(PYTEST_ARGS))

# Other seeds: make simulate SEEDS=100000 SIMULATE_ARGS="--first-seed 10000 -k ledger"
SEEDS := 10000
simulate: $(KERNELS)
	@$(BIN)/python -m flinkray.testing.simulation.sweep --seeds $(SEEDS) $(SIMULATE_ARGS)

format: $(READY)
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

# To put the figures into docs/benchmarks.md: make bench BENCH_ARGS=--record
bench: $(KERNELS)
	@missed=; for benchmark in benchmarks/[!_]*.py; do \
	    echo "== $$benchmark"; $(BIN)/python "$$benchmark" $(BENCH_ARGS) || missed="$$missed $$benchmark"; \
	done; \
	$(BIN)/python -m tools.benchmarks_page --write; \
	if [ -n "$$missed" ]; then echo "a goal was missed, or the run failed:$$missed"; exit 1; fi

coverage-page: $(READY)
	@$(BIN)/python tools/spec_coverage.py --write

clean:
	@rm -rf $(VENV) $(VENV4) .venv-matrix build dist .mypy_cache .ruff_cache .pytest_cache
