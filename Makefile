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

.PHONY: setup demo test npu-contract bench lint mutants clean

setup: $(READY)

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(RUN) -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]"
	touch $@

demo: $(READY)
	$(RUN) -m hpfun_torch.demo indexer
	$(RUN) -m hpfun_torch.demo routes
	$(RUN) -m hpfun_torch.demo attention
	$(RUN) -m hpfun_torch.demo batch
	$(RUN) -m hpfun.cli recompute deepseek_v3 --budget 100GiB --picture build/demo/recompute.png

test: $(READY)
	$(RUN) -m pytest -q -n $(WORKERS) --dist loadgroup
	$(RUN) -m pytest -q --nbmake --no-header -n $(WORKERS) notebooks

# Calls of Ascend's operators against the wheel's own schemas, in an environment of their own. The wheel is imported on
# stub libraries: nothing of it computes, and what would have to reports an error, at once where nothing is queued.
NPU_VENV := .venv-npu
NPU_RUN := TASK_QUEUE_ENABLE=0 LD_LIBRARY_PATH=build/npu-stubs $(NPU_VENV)/bin/python
NPU_NEEDS := torch==2.13.0 torch_npu==2.13.0 attrs numpy hypothesis pytest pyyaml

npu-contract: build/npu-stubs/.ready
	$(NPU_RUN) -m pytest -q -p no:cacheprovider tests/test_npu_contract.py

$(NPU_VENV)/.ready: constraints.txt
	$(PYTHON) -m venv $(NPU_VENV)
	$(NPU_VENV)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt $(NPU_NEEDS) \
		|| { echo "npu-contract needs a package index that has: $(NPU_NEEDS)" >&2; exit 1; }
	touch $@

build/npu-stubs/.ready: $(NPU_VENV)/.ready tests/npu/stubs.py
	$(NPU_VENV)/bin/python -m tests.npu.stubs build/npu-stubs
	touch $@

bench: $(READY)
	$(RUN) -m tests.bench

lint: $(READY)
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .
	$(RUN) -m ty check

mutants: $(READY)
	$(RUN) -m tests.mutants

clean:
	rm -rf $(VENV) $(NPU_VENV) build dist *.egg-info
