# Everything a fresh machine with Python 3.11 and make needs.
.DEFAULT_GOAL := help
.PHONY: help install install-dev run test chaos check format lint type layers proto proto-tools docs chart-tools node-clients bench exactness
.PHONY: train-demo clean

PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip --disable-pip-version-check --quiet

help: ## Show this help.
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  %-14s %s\n", $$1, $$2}'

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: pyproject.toml constraints.txt | $(BIN)/python
	@echo "installing into $(VENV) ..."
	$(PIP) install -c constraints.txt -e '.[all]'
	@touch $@

$(VENV)/.installed-dev: pyproject.toml constraints.txt | $(BIN)/python
	@echo "installing into $(VENV) ..."
	$(PIP) install -c constraints.txt -e '.[all,dev,bench]'
	@touch $(VENV)/.installed $@

install: $(VENV)/.installed ## Create the environment.

install-dev: $(VENV)/.installed-dev ## Create the environment with what tests need.

run: install ## Start the whole system, stream a sample, keep serving until Ctrl-C; PAIR=smollm2 fetches a chat model.
ifdef PAIR
	$(BIN)/specdec models get $(PAIR)
	@exec $(BIN)/specdec up --target $(PAIR) $(ARGS)
else
	@exec $(BIN)/specdec up $(ARGS)
endif

# Each file runs in one process, and the files that take longest come first (tests/conftest.py orders them).
PARALLEL := --dist loadfile --no-loadscope-reorder
# Tests wait at least as long as they compute, so that two processes fill a core.
WORKERS ?= $(shell echo $$((2 * $$(getconf _NPROCESSORS_ONLN))))
SYSTEM_WORKERS ?= 3
# Floods run alone, because a bystander's share of the cores is part of what they look at.
FLOODS := tests/attacks/test_front_door.py tests/attacks/test_admission.py tests/attacks/test_bystanders.py
# Tests that start whole systems run after the others, and few at a time, since all processes share the cores.
SYSTEMS := tests/e2e tests/kubernetes tests/attacks

# Hundreds of processes start: with bytecode on the disk, none compiles anew what another has compiled.
test: export PYTHONDONTWRITEBYTECODE :=
test: install-dev proto-tools chart-tools node-clients browser ## Run every test; ARGS='tests/unit -x' for those of a path, in one process.
ifdef ARGS
	$(BIN)/python -m pytest $(ARGS)
else
	@status=0; \
	$(BIN)/python -m pytest -n $(WORKERS) --maxprocesses 8 $(PARALLEL) tests $(addprefix --ignore=,$(SYSTEMS)) || status=1; \
	$(BIN)/python -m pytest -n $(SYSTEM_WORKERS) $(PARALLEL) $(SYSTEMS) $(addprefix --ignore=,$(FLOODS)) || status=1; \
	$(BIN)/python -m pytest $(FLOODS) || status=1; \
	exit $$status
endif

chaos: install-dev ## Kill everything at random for five minutes; ARGS='--seconds 60 --seed 7' and more.
	$(BIN)/python -m tests.chaos --json chaos.json $(ARGS)

.PHONY: corruption
corruption: install-dev ## Flip bytes on every hop while 30,000 tokens pass; ARGS='--hops redis --every 5000' and more.
	$(BIN)/python -m tests.chaos.corruption $(ARGS)

.PHONY: nightly soak attacks
attacks: install-dev ## Run every attack in its large form beside a bystander, and print a table; ARGS='users tools' runs these two.
	$(BIN)/python -m tests.attacks.trial $(ARGS)

nightly: install-dev ## Check 100,000 tokens while bytes are flipped and everything is killed; ARGS='--tokens 5000' and more.
	$(BIN)/python -m tests.chaos.nightly --json nightly.json $(ARGS)

soak: install-dev ## Load a system for 30 minutes: no process may grow, no key may stay; ARGS='--minutes 3 --bound 8' and more.
	$(BIN)/python -m tests.soak --json soak.json $(ARGS)

.PHONY: vllm vllm-test
DEVICE ?= cpu
vllm: ## Make the environment of the backend vllm in build/vllm (gigabytes); DEVICE=cuda for accelerators, VLLM=0.33.0 to try another one.
	$(PYTHON) verifier_service/vllm/environment.py build/vllm$(VLLM:%=-%) $(DEVICE) $(VLLM)

vllm-test: export PYTHONDONTWRITEBYTECODE :=
vllm-test: ## Run the tests of the backend vllm alone, after `make vllm`; ARGS='-k name' and more.
	$(BIN)/python -m pytest -n $(SYSTEM_WORKERS) $(PARALLEL) tests/vllm $(ARGS)

# Debian's own, without a registry: it takes root, and some minutes.
.PHONY: images container-tools containers-test
CONTAINER_TOOLS := podman runc debootstrap netavark aardvark-dns iptables
images: container-tools ## Build all four container images and Debian's Valkey; IMAGES='gateway drafter' for some, ARGS=--state accepts sizes.
	$(PYTHON) -m images $(IMAGES) $(ARGS)

container-tools: ## Install podman, runc and debootstrap where they are missing (Debian, root).
	@for tool in podman runc debootstrap; do command -v $$tool >/dev/null || lacking=yes; done; \
	if [ "$$lacking" ]; then apt-get update -qq && apt-get install -qq --no-install-recommends --yes $(CONTAINER_TOOLS); fi

containers-test: install-dev container-tools build/podman-compose/.installed ## Try compose.yaml with the images that `make images` built.
	SPECDEC_CONTAINERS=1 $(BIN)/python -m pytest tests/containers $(ARGS)

.PHONY: cluster-test
cluster-test: install-dev ## Try the chart on the cluster that KUBECONFIG names, with the built images (tests/cluster/README.md).
	SPECDEC_CLUSTER=1 $(BIN)/python -m pytest tests/cluster $(ARGS)

build/podman-compose/.installed: Makefile
	$(PYTHON) -m venv build/podman-compose
	build/podman-compose/bin/pip install --quiet podman-compose==1.6.0
	@touch $@

.PHONY: kube-apiserver kubernetes
SPECDEC_KUBE_APISERVER ?= $(CURDIR)/build/kube/kube-apiserver

$(SPECDEC_KUBE_APISERVER):
	nice tests/kubernetes/build.sh $(@D)

kube-apiserver: $(SPECDEC_KUBE_APISERVER) ## Build a real kube-apiserver from Debian 12's sources (5 to 20 minutes).

kubernetes: install-dev kube-apiserver ## Try chart, discovery and ratio controller against a real kube-apiserver.
	SPECDEC_KUBE_APISERVER=$(SPECDEC_KUBE_APISERVER) $(BIN)/python -m pytest tests/kubernetes $(ARGS)

check: lint type layers test ## What CI runs.

format: install-dev ## Format the code and the protos.
	$(BIN)/ruff check --fix . && $(BIN)/ruff format . && $(BIN)/buf format -w

lint: install-dev ## Lint the code, the protos and the Dockerfiles.
	$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/buf lint && $(BIN)/buf format -d --exit-code
	$(BIN)/hadolint */Dockerfile verifier_service/vllm/Dockerfile

type: install-dev ## Check the types.
	$(BIN)/mypy

layers: install-dev ## Check the import rules.
	$(BIN)/lint-imports

# A tier of the last release works beside those of this one, while every message reads as before.
.PHONY: breaking release-protos
RELEASED := protos/released.binpb
breaking: install-dev ## Check that the protos still read what those of the last release wrote; AGAINST=... names a commit instead.
ifdef AGAINST
	$(BIN)/buf breaking --against "$$(git rev-parse --git-common-dir)#ref=$$(git rev-parse '$(AGAINST)^{commit}')"
else
	$(BIN)/buf breaking --against $(RELEASED)
endif

release-protos: breaking ## Keep the protos of a release, for those to come to be compared with.
	$(BIN)/buf build --exclude-source-info -o $(RELEASED)

# The generator runs apart: its protobuf is older than the services', so that older clients can import the code.
.venv-proto/.installed: protos/requirements.txt
	$(PYTHON) -m venv .venv-proto
	.venv-proto/bin/python -m pip --disable-pip-version-check --quiet install -r protos/requirements.txt
	@touch $@

proto-tools: .venv-proto/.installed

proto: proto-tools ## Generate the code of the protos, the package specdec.protos.
	.venv-proto/bin/python protos/generate.py .

docs: install-dev ## Write the pages that are made from the code.
	$(BIN)/python docs/configuration.py && $(BIN)/python docs/chart.py && $(BIN)/python docs/status_codes.py && \
		$(BIN)/python docs/peers_chart.py && $(BIN)/python docs/performance.py

.PHONY: benchmark-clients tool-clients
benchmark-clients: ## Install AIPerf and GuideLLM apart, for tests/benchmark_clients (gigabytes).
	$(PYTHON) -m venv build/benchmark-clients
	build/benchmark-clients/bin/pip install --quiet aiperf==0.13.0 guidellm==0.8.1 torch==2.13.0

tool-clients: ## Install agents' clients and lm-evaluation-harness, each apart, for tests/tool_clients.
	$(PYTHON) -m venv build/tool-clients
	build/tool-clients/bin/pip install --quiet instructor==1.17.0 langchain-openai==1.7.3
	$(PYTHON) -m venv build/agent-clients
	build/agent-clients/bin/pip install --quiet litellm==1.110.2 'pydantic-ai-slim[anthropic,openai]==2.68.0'
	$(PYTHON) -m venv build/eval-clients
	build/eval-clients/bin/pip install --quiet 'lm_eval[api]==0.4.13' transformers==5.23.0

# Without them the chart's tests skip what needs them, with the reason.
chart-tools: ## Fetch promtool and the schemas of the operators' resources, for the chart's tests (needs apt-get and npm).
	@if command -v npm >/dev/null; then timeout 180 $(MAKE) -s build/crds/.installed || true; fi
	@if command -v apt-get >/dev/null; then timeout 180 $(MAKE) -s build/promtool || true; fi

node-clients: ## Fetch the clients for Node that tests call the gateway with (needs npm).
	@if command -v npm >/dev/null; then timeout 180 $(MAKE) -s build/node/.installed || true; fi

.PHONY: browser screenshots
browser: ## Fetch a headless Chromium and Playwright, for the tests of the page (needs npm).
	@if command -v npm >/dev/null; then timeout 180 $(MAKE) -s build/browser/.installed || true; fi

# The package holds the browser compressed; it unpacks it into TMPDIR.
build/browser/.installed: Makefile
	@echo "fetching Chromium into build/browser ..."
	npm install --loglevel=error --no-audit --no-fund --prefix build/browser @sparticuz/chromium@153.0.0 playwright-core@1.65.1 >/dev/null
	cd build/browser && TMPDIR=$(CURDIR)/build/browser \
		node --input-type=module -e 'import c from "@sparticuz/chromium"; await c.executablePath()'
	@touch $@

screenshots: install-dev browser ## Take the page's screenshots anew, for docs/page.md.
	$(BIN)/python -m tests.e2e.page.screenshots

build/node/.installed: Makefile
	@echo "fetching clients for Node into build/node ..."
	npm install --loglevel=error --no-audit --no-fund --prefix build/node openai@7.55.0 @grpc/grpc-js@1.14.7 \
		@grpc/proto-loader@0.8.0 @anthropic-ai/sdk@1.14.0 ai@6.0.326 @ai-sdk/openai@3.0.141 @ai-sdk/openai-compatible@2.0.92 \
		json-schema-test-suite@0.0.10 >/dev/null
	@touch $@

build/crds/.installed: Makefile
	@echo "fetching the schemas of operators into build/crds ..."
	npm install --loglevel=error --no-audit --no-fund --prefix build/crds @kubernetes-models/keda@0.4.2 \
		@kubernetes-models/prometheus-operator@6.0.0 @kubernetes-models/cert-manager@4.4.4 @kubernetes-models/gateway-api@0.5.1 >/dev/null
	@touch $@

# Debian's package, unpacked and not installed: that needs no root.
APT = apt-get -qq -o Dir::State::lists=$(CURDIR)/build/apt/lists -o Dir::Cache=$(CURDIR)/build/apt \
	-o APT::Sandbox::User=root -o Acquire::Retries=3
build/promtool:
	@echo "fetching promtool into build ..."
	mkdir -p build/apt/lists/partial build/apt/archives/partial
	$(APT) update && cd build/apt && $(APT) download prometheus && dpkg -x prometheus_*.deb . && mv usr/bin/promtool ..
	rm -r build/apt

exactness: install-dev ## Measure acceptance and speed of every mode and write docs/exactness.md; resumes after a kill.
	$(BIN)/python -m benchmarks.exactness $(ARGS)

.PHONY: paper
paper: install-dev ## Reproduce the tables and figures of Leviathan et al. and write docs/paper.md (minutes); ARGS="--seed 1".
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.paper $(ARGS)

# `make bench ARGS=peers` and others compare with vLLM, in environments of its own.
PEERS := build/vllm/.venv/bin/vllm build/arctic/.installed
bench: install-dev $(if $(filter peers one_core,$(ARGS)),$(PEERS)) $(if $(filter host_path,$(ARGS)),$(firstword $(PEERS))) ## Measure on this machine and write benchmarks/RESULTS.md (minutes); ARGS="--quick", "--resume", or section names.
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks $(ARGS)

.PHONY: gpu
gpu: install-dev ## Measure on one GPU within nine minutes; ARGS="--resume", phases, or "--shape tiny --device cpu --quick" anywhere.
	$(BIN)/python -m benchmarks.gpu_all $(ARGS)

build/vllm/.venv/bin/vllm:
	$(MAKE) vllm

# The package has a source archive alone, and patches vLLM: the peer with suffix decoding is the only one that loads it.
build/arctic/.installed: | build/vllm/.venv/bin/vllm
	@echo "building vLLM's suffix decoding into build/arctic (needs cmake and a compiler) ..."
	sh benchmarks/arctic.sh build/arctic build/vllm/.venv || echo "no suffix decoding: the table will say why"

train-demo: install-dev ## Train models/demo from this interpreter's standard library; resumes after a kill.
	$(BIN)/python -m models.train $(ARGS)

.PHONY: train-smollm2-drafter
train-smollm2-drafter: install-dev ## Distil a drafter for smollm2 from its own answers (hours); resumes after a kill.
	$(BIN)/specdec models get smollm2
	$(BIN)/specdec train drafter --target smollm2 --questions benchmarks/spec_bench.jsonl $(ARGS)

.PHONY: train-smollm2-head
train-smollm2-head: install-dev ## Train a draft head for smollm2 on texts that it writes (hours); resumes after a kill.
	$(BIN)/specdec models get smollm2
	$(BIN)/specdec train head --target smollm2 --data models/smollm2/texts.npz --tokens 337000 --epochs 6.5 \
		--questions benchmarks/spec_bench.jsonl $(ARGS)

clean: ## Remove what make created.
	rm -rf $(VENV) .venv-proto .mypy_cache .pytest_cache .ruff_cache .import_linter_cache *.egg-info build
