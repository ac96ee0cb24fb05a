# Every target installs what it needs: system packages (as root, on Debian) and a virtual environment in .venv, or,
# with PYTHON=python3.14, in one of that Python.

VENV := .venv$(if $(PYTHON),-$(notdir $(PYTHON)))
BIN := $(VENV)/bin
INSTALLED := $(VENV)/installed
DIRECTORY ?= examples/manifests
PREFIX ?= /usr/local
# As root, tests on a real containerd must run; elsewhere they are skipped, with the reason.
export TRIO_KUBELET_REQUIRE_CONTAINERD ?= $(if $(filter 0,$(shell id -u)),1,0)

# The tests of a file share fixtures and stay together. Files are given out in their order, in which those that wait
# for long are among the first: so no process is left with them at the end.
BESIDE := -n $(or $(WORKERS),3) --dist loadfile --no-loadscope-reorder

.DEFAULT_GOAL := help
.PHONY: help run browser test test-beside test-alone node-machine test-node node-shutdown node-shell soak lint c-test c-valgrind c-fuzz bench bench-node bench-density bench-kubelet bench-relist bench-starts wheel deb install uninstall clean

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/\1\t\2/p' $(MAKEFILE_LIST) | expand -t 16

run: $(INSTALLED) ## run the pods of examples/manifests on a private containerd (DIRECTORY=… for others)
	$(BIN)/python -m trio_kubelet.precompile
	$(BIN)/trio-kubelet standalone $(DIRECTORY)

browser: $(INSTALLED) ## what tests of the node's page need: chromium of the system, and playwright to drive it
	tools/system-packages browser
	TRIO_KUBELET_CHECKED_BUILD=1 $(BIN)/python -m pip install -q -e '.[browser]'

test: $(INSTALLED) ## the test suite, with a real containerd: the next two (PYTHON=python3.14 for another Python)
	@$(MAKE) --no-print-directory --keep-going -j1 test-beside test-alone

test-beside: $(INSTALLED) ## most of it, in WORKERS (default 3) processes, for these tests mostly wait
	$(BIN)/python -m trio_kubelet.standalone.packages
	$(BIN)/python -m pytest -q $(BESIDE) -m "not soak and not alone" tests $(PYTEST_FLAGS)

test-alone: $(INSTALLED) ## the tests that measure and want the machine for themselves, one by one
	$(BIN)/python -m trio_kubelet.standalone.packages
	$(BIN)/python -m pytest -q -m "alone and not soak" tests $(PYTEST_FLAGS)

soak: $(INSTALLED) ## the long versions of the tests: more restarts, more seeds
	$(BIN)/python -m trio_kubelet.standalone.packages
	$(BIN)/python -m pytest -q -m soak tests $(PYTEST_FLAGS)

lint: $(INSTALLED) ## ruff and mypy --strict
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --strict

c-test: $(INSTALLED) ## tests of the C code under ASan and UBSan
	$(MAKE) --no-print-directory -C csrc test

c-valgrind: $(INSTALLED) ## the same tests under valgrind
	tools/system-packages c-tools
	$(MAKE) --no-print-directory -C csrc valgrind

c-fuzz: $(INSTALLED) ## each fuzz target of the C code for RUNS inputs (default 200,000)
	tools/system-packages c-tools
	$(MAKE) --no-print-directory -C csrc fuzz PYTHON=$(BIN)/python

node-machine: $(INSTALLED) ## a machine with cgroup v2 and systemd (User Mode Linux), built once and kept
	$(BIN)/python -m tools.node_machine build

test-node: $(INSTALLED) ## the tests of the node, and those on a real containerd, in that machine (as root; MACHINE=qemu: those that want huge pages, NUMA, iSCSI or NFS)
	$(BIN)/python -m tools.node_machine test $(PYTEST_FLAGS)

node-shutdown: $(INSTALLED) ## a real reboot of that machine under its pods, then a power-off (as root)
	$(BIN)/python -m tools.node_machine shutdown

node-shell: $(INSTALLED) ## a shell in that machine (MACHINE=qemu: emulated)
	$(BIN)/python -m tools.node_machine shell

bench: $(INSTALLED) ## benchmarks; the scaling curves go to bench/results
	mkdir -p build
	$(BIN)/python -m pytest -q bench --benchmark-only --benchmark-json=build/bench.json $(PYTEST_FLAGS)
	$(BIN)/python -m bench.plot build/bench.json bench/results

bench-node: $(INSTALLED) ## what a node's user waits for, on a real containerd (as root); then 1,000 pods, simulated
	$(BIN)/python -m trio_kubelet.precompile
	$(BIN)/python -m trio_kubelet.standalone.packages
	tools/fresh-disk $(BIN)/python -m bench.node_figures
	tools/fresh-disk $(BIN)/python -m bench.node_figures --scale
	PYTHONPATH=. tools/fresh-disk $(BIN)/python bench/probe_figures.py

bench-starts: $(INSTALLED) ## 100 real pods at once (ROUNDS=…), in turn with plain CRI calls (as root)
	$(BIN)/python -m trio_kubelet.precompile
	$(BIN)/python -m trio_kubelet.standalone.packages
	tools/fresh-disk $(BIN)/python -m bench.start_figures --widths 4,8 --rounds $(or $(ROUNDS),5)

bench-density: $(INSTALLED) ## 200 real pods (PODS=…, PERIOD=… of their probes, OCI_RUNTIME=… for runc's): start, rest, deaths, kill -9, pages, beside plain CRI calls (as root)
	$(BIN)/python -m trio_kubelet.precompile
	$(BIN)/python -m trio_kubelet.standalone.packages
	tools/fresh-disk $(BIN)/python -m bench.density_figures --pods $(or $(PODS),200) --period $(or $(PERIOD),10) \
		$(if $(OCI_RUNTIME),--oci-runtime $(OCI_RUNTIME))

bench-kubelet: $(INSTALLED) ## 100 real pods (PODS=…, PERIOD=…, ROUNDS=…, OCI_RUNTIME=…): start, rest, deaths, in turn with a kubelet (KUBELET=…, as root)
	$(BIN)/python -m trio_kubelet.precompile
	$(BIN)/python -m trio_kubelet.standalone.packages
	tools/fresh-disk $(BIN)/python -m bench.beside_kubelet --kubelet $(KUBELET) --pods $(or $(PODS),100) \
		--period $(or $(PERIOD),10) --rounds $(or $(ROUNDS),2) $(if $(OCI_RUNTIME),--oci-runtime $(OCI_RUNTIME))

bench-relist: $(INSTALLED) ## the relist alone, at the size that counts; ends with a line of JSON
	$(BIN)/python -m bench.relist_quick

wheel: $(INSTALLED) ## a wheel for this interpreter, in dist/
	$(BIN)/python -m pip wheel -q --no-deps -w dist .

deb: $(INSTALLED) ## a Debian package for this machine's release, in build/
	mkdir -p build
	tools/make-deb $(BIN)/python build

install: ## as a service of systemd, below PREFIX (default /usr/local)
	tools/system-packages
	"$$(tools/find-python)" -m venv $(PREFIX)/lib/trio-kubelet
	$(PREFIX)/lib/trio-kubelet/bin/python -m pip install -q $(PIP_FLAGS) .
	cd / && $(PREFIX)/lib/trio-kubelet/bin/python -m trio_kubelet.precompile
	mkdir -p $(PREFIX)/bin /etc/systemd/system
	ln -sf $(PREFIX)/lib/trio-kubelet/bin/trio-kubelet $(PREFIX)/bin/trio-kubelet
	sed 's|@PREFIX@|$(PREFIX)|' packaging/trio-kubelet.service > /etc/systemd/system/trio-kubelet.service
	[ ! -d /run/systemd/system ] || systemctl daemon-reload

uninstall: ## remove what install made; a running agent is stopped, its pods stay
	[ ! -d /run/systemd/system ] || systemctl disable --now trio-kubelet
	rm -rf $(PREFIX)/lib/trio-kubelet
	rm -f $(PREFIX)/bin/trio-kubelet /etc/systemd/system/trio-kubelet.service
	[ ! -d /run/systemd/system ] || systemctl daemon-reload

clean: ## remove everything that was built, virtual environments included
	rm -rf .venv .venv-* build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .benchmarks
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
	rm -f trio_kubelet/native/_core*.so trio_kubelet/native/_core.c

# The package is installed in place; a change in the C code, the build or the dependencies builds it again. Its
# bytecode is made here, as pip makes that of the others: an agent that may not write any
# (PYTHONDONTWRITEBYTECODE) would compile its modules at each start, which takes as long as all else in it.
$(INSTALLED): pyproject.toml build_ext.py $(wildcard csrc/*.c csrc/*.h)
	tools/system-packages
	[ -x $(BIN)/python ] || "$$(tools/find-python)" -m venv $(VENV)
	TRIO_KUBELET_CHECKED_BUILD=1 $(BIN)/python -m pip install -q -e '.[dev]'
	$(BIN)/python -m trio_kubelet.precompile
	touch $@
