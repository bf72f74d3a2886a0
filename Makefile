# make demo: install and train on the embedded data.  make test: install and run every check.
# Another interpreter: make demo PYTHON=python3.12

PYTHON ?= $(firstword $(foreach p,python3 python3.13 python3.12 python3.11,\
            $(shell $(p) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' \
                    >/dev/null 2>&1 && echo $(p))))
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: demo test bench clean

demo: $(READY)
	$(BIN)/python train.py

test: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/pytest -n auto --dist worksteal

bench: $(READY)
	$(BIN)/attnlab bench

# Redone when the dependencies change; an interrupted installation leaves no stamp.
$(READY): pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || \
	  { echo "error: Python 3.11, 3.12 or 3.13 is needed; name it: make PYTHON=/path/to/python3.11" >&2; exit 1; }
	@"$(PYTHON)" -c 'import sys; v = sys.version_info; (3, 11) <= v < (3, 14) or sys.exit(f"error: Python 3.11, 3.12 or 3.13 is needed, $(PYTHON) is {v.major}.{v.minor}; name another: make PYTHON=/path/to/python3.11")'
	@echo "installing into $(VENV): a few minutes, once"
	test -x $(BIN)/python || "$(PYTHON)" -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

clean:
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
