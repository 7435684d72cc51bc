# make demo | test | test-clients | test-xla | lint | docs | clean. Needs python3 (3.10 or later) and make; everything else
# goes into $(VENV), and for test-xla into $(XLA_VENV).
PYTHON ?= python3
VENV ?= .venv
XLA_VENV ?= .venv-xla
WORKERS ?= 2
# Absolute, so that nothing that changes the directory loses it.
BIN := $(abspath $(VENV))/bin
INSTALL = $(BIN)/python -m pip install --quiet --constraint constraints.txt --editable
REQUIREMENTS := setup.py constraints.txt
# The newest torch_xla, and the torch that it is for.
XLA := torch==2.9.1 torch_xla==2.9.0

# One thread a process: the models here are so small that threads cost more than they bring, and WORKERS tests at a
# time would fight over the cores.
demo test test-clients test-xla docs: export OMP_NUM_THREADS = 1
# Nothing here asks the Hub: models, data and metrics are files of this repository.
demo test test-clients test-xla docs: export HF_HUB_OFFLINE = 1

.PHONY: demo test test-clients test-xla lint docs clean

demo: $(VENV)/installed
	$(BIN)/python -m demo

test: $(VENV)/installed-test
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile

# The models inside other people's libraries, which the suite does without.
test-clients: $(VENV)/installed-clients
	$(BIN)/python -m pytest tests/clients -n $(WORKERS) --dist loadfile

# Runs and models on XLA against the CPU, in an environment of their own, because torch_xla needs an earlier torch. It
# takes 7 GB; neither the suite nor continuous integration needs it.
test-xla: $(XLA_VENV)/installed-xla
	$(abspath $(XLA_VENV))/bin/python -m pytest tests/xla -v

lint: $(VENV)/installed-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mlinter modeling/ --no-progress

# A site of the guides and the docstrings, in docs/site/html.
docs: $(VENV)/installed-docs
	$(BIN)/sphinx-build --quiet --fresh-env --fail-on-warning --keep-going --conf-dir docs/site . docs/site/html

clean:
	rm -rf $(VENV) $(XLA_VENV) demo/output docs/site/html *.egg-info

$(VENV)/installed: $(REQUIREMENTS)
	$(PYTHON) -m venv --clear $(VENV)
	$(INSTALL) .
	touch $@

$(VENV)/installed-test: $(VENV)/installed
	$(INSTALL) '.[test]'
	touch $@

$(VENV)/installed-clients: $(VENV)/installed-test
	$(INSTALL) '.[clients]'
	touch $@

$(VENV)/installed-docs: $(VENV)/installed
	$(INSTALL) '.[docs]'
	touch $@

$(XLA_VENV)/installed-xla: $(REQUIREMENTS)
	$(PYTHON) -m venv --clear $(XLA_VENV)
	sed '/^torch==/d' constraints.txt > $(XLA_VENV)/constraints.txt
	$(XLA_VENV)/bin/python -m pip install --quiet --constraint $(XLA_VENV)/constraints.txt --editable . $(XLA) pytest pytest-timeout
	touch $@
