# Everything that a developer runs. `make setup` (part of the others) prepares .venv for joins on this machine, `make setup-EXTRA` adds an extra of
# pyproject.toml, and `make setup-test` all that tests need; each returns at once when there is nothing to do.

# Debian, Ubuntu and Fedora build their own Python with optimisations that others often lack (pyenv's is half as fast), as the images have it.
PYTHON ?= $(firstword $(shell /usr/bin/python3 -c 'import ensurepip, sys, venv; print(sys.executable) if sys.version_info >= (3, 11) else 0' 2>&-) python3)
BIN := .venv/bin
PYTEST ?= $(BIN)/pytest -n 4 --dist loadgroup --no-loadscope-reorder
# Tests start hundreds of Python processes. In a container where this is set, each would compile all that it imports.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup setup-test demo test test-all test-costs steady docs-check kubernetes-check release-check research-check lint bench crds docs docs-version diagrams monitoring kubernetes cluster-up cluster-down e2e lock chart packages images bundle release scan release-tag publish-images publish-python \
	publish-page publish-docs workflows clean

help: ## Show this list
	@awk 'BEGIN {FS = ":.*## "} /^[a-z0-9-]+:.*## / {printf "make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: ## Make .venv with Spark and, where none is found, Java
	@$(PYTHON) tools/setup.py

setup-test: ## Add all that tests and checks of style and types need
	@$(PYTHON) tools/setup.py dev tables cassandra protobuf otel docs examples release research

setup-%:
	@$(PYTHON) tools/setup.py $*

demo: setup ## Join two made-up streams on Spark, on this machine, with as many workers as it takes; draw and check the run
	rm -rf out/demo
	$(BIN)/streamjoin run examples/demo.yaml --elastic --until-idle --picture out/demo/run.png
	$(BIN)/streamjoin explain examples/demo.yaml --limit 12
	$(BIN)/python examples/demo.py
	$(BIN)/streamjoin query examples/demo.yaml "SELECT count(*) AS pairs, max(abs(difference)) AS widest FROM match WHERE order_id BETWEEN 1000 AND 2000"

lint: setup-test ## Check style and types
	$(BIN)/ruff check
	$(BIN)/ruff format --check --quiet
	$(BIN)/mypy

crds: setup ## Make the CustomResourceDefinitions from the manifest's models
	$(BIN)/python -m streamjoin_operator.crd > crds/streamjoins.streamjoin.dev.yaml
	$(BIN)/python -m streamjoin_operator.snapshot_model > crds/streamjoinsnapshots.streamjoin.dev.yaml
	cp crds/streamjoins.streamjoin.dev.yaml crds/streamjoinsnapshots.streamjoin.dev.yaml charts/streamjoin-operator/files/
	$(BIN)/python tools/chart_readme.py

docs: export NO_MKDOCS_2_WARNING := 1
docs: setup-docs ## Build the documentation as a site, in out/site; a link that leads nowhere is an error
	$(BIN)/mkdocs build --strict
	@echo "open out/site/index.html"

# Commits it to the branch gh-pages of this clone, beside the versions that are there; nothing is pushed.
docs-version: export NO_MKDOCS_2_WARNING := 1
docs-version: setup-docs ## Add this version's documentation to the branch gh-pages, with a list of versions to choose from
	$(BIN)/mike deploy --update-aliases $$($(BIN)/python -c "import streamjoin; print(streamjoin.__version__)") latest
	$(BIN)/mike set-default latest

diagrams: setup-docs ## Draw the diagrams of the documentation that have changed (needs npm and Chromium)
	$(BIN)/python tools/diagrams.py

monitoring: setup ## Make Grafana's dashboard and the alerts of the documentation
	$(BIN)/python tools/dashboard.py
	$(BIN)/python tools/alerts.py

# No error where they cannot be had: tests that need them are skipped then.
kubernetes: setup-test ## Find or build (minutes, once) the Kubernetes programs that tests use
	@$(BIN)/python tools/kubernetes_programs.py --optional etcd kube-apiserver kubectl helm actionlint crane

# What each test took is in out/tests.jsonl afterwards.
test: export STREAMJOIN_TESTS := change
test test-all: export STREAMJOIN_RECORD := out/tests.jsonl
test: lint ## Check style and types, and run the tests that every change must pass
	$(PYTEST)

test-all: export STREAMJOIN_CASES := all
test-all: export STREAMJOIN_SHARD := $(SHARD)
test-all: lint ## Run every test with every case (SHARD=2/6: the second of six parts)
	$(PYTEST)

test-costs: ## Print what the tests of the last run took, and what they waited for
	@$(BIN)/python tests/costs.py

steady: setup-test ## Run make test beside busy processes, on one core, and ten times (hours)
	$(BIN)/python tools/steady.py

docs-check: export STREAMJOIN_TESTS := docs
docs-check: setup-test docs ## Build the documentation, and check that its pages do what they say
	$(PYTEST)

# STREAMJOIN_KUBERNETES=v1.31.14 is another version than the usual one (tools/kubernetes_programs.py).
kubernetes-check: kubernetes ## Ask the API server of one version of Kubernetes whatever tests ask one
	$(PYTEST) -m apiserver

release-check: export STREAMJOIN_TESTS := release
release-check: kubernetes ## Check what makes releases: packages, images, the chart, workflows
	$(PYTEST)

research-check: export STREAMJOIN_TESTS := research
research-check: setup-test ## Check what reproduces papers (engine/streamjoin_research)
	$(PYTEST)

# Each prints what it does, and the first one at the end the KUBECONFIG of the cluster.
cluster-up: setup-dev ## Start a Kubernetes cluster with our images, Prometheus, Kafka and S3 (minutes the first time)
	@$(BIN)/python tools/cluster.py up

cluster-down: setup-dev ## End what cluster-up started
	@$(BIN)/python tools/cluster.py down

e2e: setup-test ## Run joins as pods of that cluster, kill their parts, and compare their results (some minutes each)
	$(BIN)/pytest -m e2e tests/test_e2e.py

# A benchmark is a program in tests/bench that prints what it measured; each is started by itself.
bench: setup-test ## Run the benchmarks (some minutes each)
	@set -e; for program in $(sort $(wildcard tests/bench/bench_*.py)); do echo "== $$program"; $(BIN)/python $$program; done

lock: setup-release ## Resolve locks/*.txt anew, after a change of pyproject.toml (UPGRADE=1: to the newest versions)
	$(BIN)/python tools/release.py lock $(if $(UPGRADE),--upgrade)

chart: kubernetes ## Lint, render and install the chart, and upgrade to it, at a real API server
	STREAMJOIN_NO_SKIPS=1 $(BIN)/pytest -n 2 --dist loadgroup tests/test_chart.py tests/test_release.py

packages: setup-release ## Build wheel, source distribution and chart of the last commit into dist/VERSION, twice, and compare
	$(BIN)/python tools/release.py packages

images: setup-release ## Build the images of the last commit for amd64 and arm64 into dist/VERSION (needs buildah; TWICE=1: and compare)
	$(BIN)/python tools/release.py images $(if $(TWICE),--twice)

bundle: setup-release ## Write the operator's bundle for OLM into dist/VERSION (BUNDLE_REGISTRY=, HOMEPAGE=, MAINTAINER='Name <name@example.com>')
	$(BIN)/python tools/release.py bundle --registry "$(BUNDLE_REGISTRY)" --home "$(HOMEPAGE)" --maintainer "$(MAINTAINER)"

release: packages images bundle ## All of a release of the last commit, in dist/VERSION: packages, images, what is in them, sums; verified
	$(BIN)/python tools/release.py sums
	$(BIN)/python tools/release.py verify dist/$$($(BIN)/python tools/release.py version)

scan: setup-release ## Ask the vulnerability databases about that release
	$(BIN)/python tools/release.py scan

# Of .github/workflows/release.yml; docs/releasing.md.
release-tag: setup-release
	$(BIN)/python tools/release.py version --tag "$(TAG)"

publish-images: setup-release
	$(BIN)/python tools/release.py publish --registry "$(REGISTRY)"

publish-python: setup-release
	$(BIN)/python tools/release.py publish --python

publish-page: setup-release
	$(BIN)/python tools/release.py publish --page "$(TAG)"

# What docs-version has made. gh gives the password, from GH_TOKEN, where the repository is GitHub's.
publish-docs:
	git -c credential.helper='!gh auth git-credential' push origin gh-pages

workflows: setup-test ## Check .github/workflows
	$(BIN)/python tools/kubernetes_programs.py actionlint
	$(BIN)/pytest -q -n 0 tests/test_workflows.py

clean: ## Remove all that was made here: .venv, caches, out
	rm -rf engine/streamjoin_research/build engine/streamjoin_research/*.egg-info
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache build dist out *.egg-info
	find engine operator tests tools examples -name __pycache__ -type d -prune -exec rm -rf {} +
