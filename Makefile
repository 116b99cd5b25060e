# make demo: set up and audit a released MNIST classifier, ending with the path of the report
# make test: set up and run the tests, a few minutes
# make test-all: everything, some hours on two cores: long tests, hostile files, kills and load; says what was skipped
# make mutants: plant mistakes, count those that the tests notice; an hour, goes on where it was stopped
# make papers: rerun every study that docs/papers.toml needs and keep the results; hours, goes on where it was stopped
# make docs: build the site into site/; a dead link is an error
# make looks: pictures of the most important pages that make docs has built, at two widths, in .ci/output
# make lock: write the hashes in lock/ anew, after a change to pyproject.toml or constraints.txt
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test test-all mutants papers check docs looks setup lock clean

setup: $(VENV)/ready-test $(VENV)-serve/ready

# Every file that is installed must have a hash in lock/. Where a platform has none that fits, HASHES=no takes
# what constraints.txt allows, unchecked.
HASHED := install --quiet --require-hashes --no-deps --no-build-isolation
ifeq ($(HASHES),no)
$(warning *** HASHES=no: what is downloaded is NOT checked against lock/ ***)
endif

$(VENV)/ready: pyproject.toml constraints.txt $(wildcard lock/*.txt)
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "exhume needs Python 3.11 or newer")'
	$(PYTHON) -m venv $(VENV)
ifeq ($(HASHES),no)
	$(BIN)/pip install --quiet -c constraints.txt -e .
else
	$(BIN)/pip $(HASHED) -r lock/torch-cpu.txt 2> /dev/null || $(BIN)/pip $(HASHED) -r lock/torch.txt
	$(BIN)/pip $(HASHED) -r lock/demo.txt
	$(BIN)/pip install --quiet --no-deps --no-build-isolation -e .
	$(BIN)/pip check
endif
	touch $@

$(VENV)/ready-test: $(VENV)/ready
ifeq ($(HASHES),no)
	$(BIN)/pip install --quiet -c constraints.txt -e '.[test]'
else
	$(BIN)/pip $(HASHED) -r lock/build.txt
	$(BIN)/pip $(HASHED) -r lock/test.txt
	$(BIN)/pip check
endif
	touch $@

# MLServer and Flower want different versions of FastAPI: its own environment, which sees the first one.
$(VENV)-serve/ready: $(VENV)/ready-test
	$(PYTHON) -m venv $(VENV)-serve
	for place in $$($(BIN)/python -c 'import site; print(site.getsitepackages()[0])') $(CURDIR)/src; do \
	  echo $$place; done > $$($(VENV)-serve/bin/python -c 'import site; print(site.getsitepackages()[0])')/shared.pth
ifeq ($(HASHES),no)
	$(VENV)-serve/bin/pip install --quiet -c constraints.txt mlserver
else
	$(VENV)-serve/bin/pip $(HASHED) -r lock/serve.txt
endif
	touch $@

demo: $(VENV)/ready
	$(BIN)/exhume audit --data mnist --momentum 0.9 --out runs/demo

test: setup
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadgroup

test-all: setup
	OMP_NUM_THREADS=1 EXHUME_TYPES=all $(BIN)/python -m pytest -n 2 --dist loadgroup -m "" -rs

mutants: setup
	$(BIN)/python tests/mutants/run.py --out runs/mutants --keep

papers: $(VENV)/ready-test
	$(BIN)/exhume study run all --scale long --keep --out runs/papers

check: setup
	$(BIN)/ruff format --check src tests lock
	$(BIN)/ruff check src tests lock
	$(BIN)/mypy
	$(BIN)/python -m pytest -p no:xdist tests/test_layers.py

# the site reads the code without importing it, so that it needs neither torch nor exhume; not --quiet,
# which also silences --strict
docs: .venv-docs/ready
	NO_MKDOCS_2_WARNING=1 .venv-docs/bin/mkdocs build --strict

.venv-docs/ready: lock/docs.txt
	$(PYTHON) -m venv .venv-docs
ifeq ($(HASHES),no)
	.venv-docs/bin/pip install --quiet -c constraints.txt mkdocs-material
else
	.venv-docs/bin/pip $(HASHED) -r lock/docs.txt
endif
	touch $@

looks: setup
	$(BIN)/python docs/_screenshots.py --site site --out .ci/output

lock: .venv-lock/ready
	.venv-lock/bin/python lock/relock.py

.venv-lock/ready: constraints.txt
	$(PYTHON) -m venv .venv-lock
	.venv-lock/bin/pip install --quiet -c constraints.txt uv
	touch $@

clean:
	rm -rf $(VENV) $(VENV)-serve .venv-docs .venv-lock site runs
