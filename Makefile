# The commands work on a machine with nothing but Python, pip and venv: they make .venv and fill it.
PYTHON ?= python3
BIN := .venv/bin
CONSTRAINTS ?= constraints.txt
INSTALL := $(BIN)/pip install --quiet --disable-pip-version-check --constraint $(CONSTRAINTS)

.PHONY: demo test test-long test-portable test-library zoo bench results check docs dist clean

demo: .venv/experiments.installed  ## grow a small network on handwritten digits, and draw what happened
	$(BIN)/neurogenesis run digits --maximum 512
	$(BIN)/neurogenesis report runs/digits-need-maximum-512-seed1

test: .venv/test.installed check  ## all tests but the long ones, with style and type checks
	$(BIN)/pytest -n 2 --dist loadgroup

test-long: .venv/test.installed  ## every test
	$(BIN)/pytest -n 2 --dist loadgroup -m "long or not long"

# Other instructions round differently, as other processors do; two threads add up in another order. What depends on
# that: trained and grown networks, and the numbers in the docs.
OTHER_PROCESSOR := ATEN_CPU_CAPABILITY=default MKL_ENABLE_INSTRUCTIONS=SSE4_2 DNNL_MAX_CPU_ISA=SSE41 OMP_NUM_THREADS=2
test-portable: .venv/test.installed  ## the tests whose numbers depend on the processor, as on another one
	$(OTHER_PROCESSOR) $(BIN)/pytest -n 2 --dist loadgroup tests/integrations/test_distributed.py tests/project/test_docs.py \
		$(patsubst %,tests/library/test_%.py,ages budget grower initializations narrow need prune triggers)

# On another Python or torch: make test-library PYTHON=python3.10 CONSTRAINTS=file-with-torch==2.7.1
test-library: .venv/library-test.installed  ## the tests of the library alone, which need torch alone
	$(BIN)/pytest -n 2 tests/library src --doctest-ignore-import-errors

zoo: .venv/test.installed  ## every width of every model of torchvision, a sample of timm and of Hugging Face
	$(BIN)/python -m benchmarks.zoo

bench: .venv/test.installed  ## what finding widths, growing, watching, selecting, compiling, several processes and the loop of the experiments cost, how new neurons fare, what growing costs on small tables, how need decides there, on other data and on dependent samples, and what sweeps on Ray cost
	for name in surgery overhead selection loop compile ddp newborn fan_outs tables unseen dependent validation decisions deepening depth_steps engine; do $(BIN)/python -W ignore -m benchmarks.$$name; done

results: .venv/test.installed  ## every table and figure of README and docs that comes from the records in results/
	$(BIN)/python -W ignore -m tools.results

check: .venv/test.installed  ## style and types
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

docs: .venv/docs.installed  ## the site, in site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	$(BIN)/python -m tools.check_site site

dist: .venv/dist.installed  ## source archive and wheel in dist/, checked, and the wheel tried in a fresh environment
	rm -rf dist
	$(BIN)/python -m build
	$(BIN)/twine check --strict dist/*
	$(BIN)/python -m tools.try_wheel dist

.venv/%.installed: pyproject.toml $(CONSTRAINTS)
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(INSTALL) --editable ".[$*]"
	touch $@

clean:
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis dist site
