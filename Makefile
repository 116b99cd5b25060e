# make demo: set up and audit a released MNIST classifier, ending with the path of the report
# make test: set up and run the tests
# make docs: build the site into site/; a dead link is an error
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test check docs setup test-slow clean

setup: $(VENV)/ready-test $(VENV)-serve/ready

$(VENV)/ready: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "exhume needs Python 3.11 or newer")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet -c constraints.txt -e .
	touch $@

$(VENV)/ready-test: $(VENV)/ready
	$(BIN)/pip install --quiet -c constraints.txt -e '.[test]'
	touch $@

# MLServer and Flower want different versions of FastAPI: its own environment, which sees the first one.
$(VENV)-serve/ready: $(VENV)/ready-test
	$(PYTHON) -m venv $(VENV)-serve
	for place in $$($(BIN)/python -c 'import site; print(site.getsitepackages()[0])') $(CURDIR)/src; do \
	  echo $$place; done > $$($(VENV)-serve/bin/python -c 'import site; print(site.getsitepackages()[0])')/shared.pth
	$(VENV)-serve/bin/pip install --quiet -c constraints.txt mlserver
	touch $@

demo: $(VENV)/ready
	$(BIN)/exhume audit --data mnist --momentum 0.9 --out runs/demo

test: setup
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadgroup

test-slow: setup
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadgroup -m "slow or hostile"

check: setup
	$(BIN)/ruff format --check src tests
	$(BIN)/ruff check src tests
	$(BIN)/mypy
	$(BIN)/python -m pytest -p no:xdist tests/test_layers.py

# the site reads the code without importing it, so that it needs neither torch nor exhume; not --quiet,
# which also silences --strict
docs: .venv-docs/ready
	NO_MKDOCS_2_WARNING=1 .venv-docs/bin/mkdocs build --strict

.venv-docs/ready: constraints.txt
	$(PYTHON) -m venv .venv-docs
	.venv-docs/bin/pip install --quiet -c constraints.txt mkdocs-material
	touch $@

clean:
	rm -rf $(VENV) $(VENV)-serve .venv-docs site runs
