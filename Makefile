# Every target creates what it needs: `make demo` and `make test` work in a fresh clone.
PYTHON ?= python3
VENV := .venv
RUN := $(VENV)/bin/python
READY := $(VENV)/.ready
WORKERS ?= 2

# gloo ranks and test workers share the cores; a thread pool in each would only fight
export OMP_NUM_THREADS ?= 1
# torch_npu without CANN must not break `import torch`
export TORCH_DEVICE_BACKEND_AUTOLOAD ?= 0

.PHONY: setup demo test bench lint mutants clean

setup: $(READY)

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(RUN) -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]"
	touch $@

demo: $(READY)
	$(RUN) -m hpfun_torch.demo indexer
	$(RUN) -m hpfun_torch.demo routes
	$(RUN) -m hpfun.cli recompute deepseek_v3 --budget 100GiB --picture build/demo/recompute.png

test: $(READY)
	$(RUN) -m pytest -q -n $(WORKERS) --dist loadgroup
	$(RUN) -m pytest -q --nbmake --no-header -p no:xdist notebooks

bench: $(READY)
	$(RUN) -m tests.bench

lint: $(READY)
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .
	$(RUN) -m ty check

mutants: $(READY)
	$(RUN) -m tests.mutants

clean:
	rm -rf $(VENV) build dist *.egg-info
