# make build  the exporter as packages have it, as target/release/gpucause
# make run    start the exporter on this host, with a stand-in workload that a log shipper disturbs where no CUDA process runs
# make test-quick  formatting, words, lints, and the tests that need neither root nor a quiet host: two minutes where all else is built
# make test   everything that must hold: formatting, lints, unit tests, tests on the running kernel (as root)
# make scenarios  every cause, injected for real, must be found, twenty times each: takes over an hour
# make test-waits  more than `make test` has: ways to wait (files, locks, processes, limits), faults of exporters and their alerts; a quarter of an hour
# make healthy  ten minutes of programs with which nothing is wrong, and a minute of each one of real PyTorch: nothing may be found
# make healthy-alerts  a quarter of an hour of them before a real Prometheus and Alertmanager: no alert may fire
# make cases  the worked cases of investigations/cases, recorded again where nothing else runs: CASES=lock for one; three minutes
# make demo-stack  a fault, its alert, and the notification, by Prometheus and Alertmanager on loopback: SCENARIO=lock is another fault
# make test-fleet  many nodes: their chains through an OpenTelemetry collector, built once, into ClickHouse; their Parquet files by DuckDB, ClickHouse and Spark; ranks that are slowed down, stopped or killed; the last seconds of all nodes as one trace; a late rank on another host
# make test-pytorch  real PyTorch on a simulated GPU: launches counted exactly, healthy programs without a chain or lost time, faults found within 10 % of their loss; eight minutes, as root, and 850 MB of wheels the first time: PYTORCH_ARGS="mixed python_loop" for some programs
# make test-counts  programs over the budget of probes, at the default settings: no count above what was made, exact while all is observed, rates within 3 % or their own error; four minutes for each of COUNT_ROUNDS=1
# make test-gpu  on a host with an NVIDIA GPU and PyTorch, Triton, CuPy and JAX: launches counted exactly, faults of real programs named, and what probes cost one; six minutes
# make fuzz   what comes from outside, read by the daemon as libFuzzer makes it up: FUZZ_SECONDS=600 for each kind of it
# make deb    a package for Debian and Ubuntu, below target/debian: the daemon, its unit, the stand-ins for `gpucause demo`;
#             ARCH=arm64 for that processor, by Debian's cross compiler, below target/aarch64-unknown-linux-gnu/debian
# make test-unit  the package on a Debian that systemd runs: hardening, reload, watchdog, socket, upgrade, purge; two minutes
# make test-kernels  what must hold on every kernel, on those of Debian, on emulated machines: GUESTS="trixie:full arm64:trixie:built" for some; writes probes/README.md
# make dashboards-picture  the dashboards as pictures of real data, at both levels and with native histograms alone; fails where a query has no answer
# make deny   licences, sources and versions of all dependencies, by cargo-deny; make advisories: known faults of them, by its database
# make bench  what the probes cost, as ratios of interleaved runs, and what the daemon, a page and an evaluation of causes take
# Every target installs what it needs on Debian and Ubuntu, and says what to install elsewhere.

CARGO ?= cargo
TARGET_DIR := $(if $(CARGO_TARGET_DIR),$(CARGO_TARGET_DIR),target)
STAND_INS := $(addprefix -p gpucause-fake-,cuda cudart cuda-driver nccl nvml)
SUDO := $(if $(filter 0,$(shell id -u)),,sudo -E)
RUN_ARGS ?=
GUESTS ?=
ARCH ?=
CASES ?=
SCENARIO ?= cpu-contention
DEMO_STACK_ARGS ?=
PYTORCH_ARGS ?=
COUNT_ROUNDS ?= 1
CARGO_DEB_VERSION := 3.8.0
CARGO_DENY_VERSION := 0.20.2
CARGO_TOOLS := $(abspath $(TARGET_DIR))/tools
# A prefix that makes cargo build for another processor.
CROSS := $(if $(ARCH),.ci/cross $(ARCH))
TRIPLE := $(if $(ARCH),aarch64-unknown-linux-gnu)
RELEASE := $(TARGET_DIR)/$(if $(ARCH),$(TRIPLE)/)release

.DEFAULT_GOAL := help
.PHONY: help run test test-quick test-unit test-kernels test-fleet pytorch test-pytorch test-counts test-gpu deny advisories test-waits scenarios healthy healthy-alerts cases demo-stack dashboards-picture fuzz bench build deb cargo-deb cargo-deny demo debug-stand-ins tools alert-tools test-tools

help:
	@sed -n 's/^# \(make\)/\1/p' Makefile

build: tools
	$(CARGO) build --release -p gpucause

# The exporter and what the demo runs, by one call of cargo: two choose other features of the same dependencies, and build those twice.
demo: tools
	$(CARGO) build --profile demo -p gpucause $(STAND_INS)
	$(TARGET_DIR)/demo/gpucause-workload lay-out $(TARGET_DIR)/demo/stand-ins

deb: tools cargo-deb
	$(CROSS) $(CARGO) build --release -p gpucause
	$(CROSS) $(CARGO) build --release $(STAND_INS)
	$(CROSS) sh -c '$$GPUCAUSE_RUNNER $(RELEASE)/gpucause-workload lay-out $(RELEASE)/stand-ins'
	rm -rf $(RELEASE)/shipped
	$(CROSS) .ci/stage-package $(RELEASE)/gpucause $(RELEASE)/shipped
	PATH="$(CARGO_TOOLS)/bin:$$PATH" $(CROSS) $(CARGO) deb -p gpucause --no-build $(if $(ARCH),--variant $(ARCH) --target $(TRIPLE))

# Its own version, in the target folder, so that nothing of the user's is replaced.
cargo-deb: tools
	@.ci/install dpkg-shlibdeps:dpkg-dev
	@"$(CARGO_TOOLS)/bin/cargo-deb" --version 2>/dev/null | grep -qxF "cargo-deb $(CARGO_DEB_VERSION)" || \
	    $(CARGO) install cargo-deb --version $(CARGO_DEB_VERSION) --locked --no-default-features --features static-lzma \
	        --root "$(CARGO_TOOLS)" --target-dir "$(CARGO_TOOLS)/build"

cargo-deny: tools
	@"$(CARGO_TOOLS)/bin/cargo-deny" --version 2>/dev/null | grep -qxF "cargo-deny $(CARGO_DENY_VERSION)" || \
	    $(CARGO) install cargo-deny --version $(CARGO_DENY_VERSION) --locked --root "$(CARGO_TOOLS)" --target-dir "$(CARGO_TOOLS)/build"

# GUESTS="bookworm:none arm64:trixie:built" for some: suites of Debian, and how far their kernel is preemptible. Needs neither root nor KVM.
test-kernels: tools
	@.ci/install jq:jq strip:binutils
	.ci/test-kernels $(GUESTS)

deny: cargo-deny
	PATH="$(CARGO_TOOLS)/bin:$$PATH" $(CARGO) deny --workspace check bans licenses sources

# Clones the database of https://github.com/rustsec/advisory-db, so it takes a network that reaches it.
advisories: cargo-deny
	PATH="$(CARGO_TOOLS)/bin:$$PATH" $(CARGO) deny --workspace check advisories

run: demo
	$(SUDO) $(TARGET_DIR)/demo/gpucause demo $(RUN_ARGS)

test: test-tools
	.ci/test

test-quick: tools
	@.ci/install clang-format:clang-format jq:jq python3:python3 pip3:python3-pip chromium:chromium
	.ci/test-quick

# GUESTS="bookworm trixie trixie-backports" for emulated machines with those kernels.
test-unit: deb
	@.ci/install mmdebstrap:mmdebstrap mke2fs:e2fsprogs systemd-nspawn:systemd-container nsenter:util-linux
	$(SUDO) .ci/under-systemd "$$(ls -t $(TARGET_DIR)/debian/gpucause_*.deb | head -n 1)" $(GUESTS)

scenarios: debug-stand-ins
	$(SUDO) env GPUCAUSE_SCENARIO_ROUNDS=20 $(CARGO) test -p gpucause --test faults scenarios::causes -- --test-threads=1 --nocapture

test-waits: debug-stand-ins alert-tools
	@.ci/install python3:python3 cc:gcc
	$(SUDO) $(CARGO) test -p gpucause --test host --test faults -- --ignored --test-threads=1

test-counts: debug-stand-ins build pytorch
	$(SUDO) python3 -B .ci/pytorch/counts.py $(TARGET_DIR)/release/gpucause $(TARGET_DIR)/pytorch $(COUNT_ROUNDS)

healthy: debug-stand-ins build pytorch
	$(SUDO) env GPUCAUSE_HEALTHY_SECONDS=600 $(CARGO) test -p gpucause --test faults scenarios::healthy -- --test-threads=1 --nocapture
	$(SUDO) python3 -B .ci/pytorch/test.py $(TARGET_DIR)/release/gpucause $(TARGET_DIR)/pytorch --seconds 60

dashboards-picture: demo
	@.ci/install prometheus:prometheus python3:python3 chromium:chromium
	$(SUDO) python3 dashboards/render/picture.py --programs $(TARGET_DIR)/demo --out $(TARGET_DIR)/dashboards/standard
	$(SUDO) python3 dashboards/render/picture.py --programs $(TARGET_DIR)/demo --out $(TARGET_DIR)/dashboards/native --native-histograms
	$(SUDO) python3 dashboards/render/picture.py --programs $(TARGET_DIR)/demo --out $(TARGET_DIR)/dashboards/full --level full

healthy-alerts: debug-stand-ins alert-tools
	$(SUDO) env GPUCAUSE_HEALTHY_SECONDS=900 $(CARGO) test -p gpucause --test faults incidents::healthy -- --test-threads=1 --nocapture

# By the programs that tests run. The pages then show what the new files answer.
cases: debug-stand-ins
	@.ci/install python3:python3 unshare:util-linux
	$(CARGO) build --workspace --all-targets
	$(SUDO) python3 -B investigations/cases/record.py --programs $(TARGET_DIR)/debug $(CASES)
	GPUCAUSE_BLESS=1 $(CARGO) test --workspace --test offline cases::

demo-stack: demo alert-tools
	@.ci/install python3:python3
	@$(SUDO) python3 -B alerts/demo-stack/run.py --programs $(TARGET_DIR)/demo --scenario $(SCENARIO) $(DEMO_STACK_ARGS)

fuzz: tools
	@.ci/install c++:g++
	exporter/fuzz/run

# Needs neither root nor probes.
debug-stand-ins: tools
	$(CARGO) build $(STAND_INS)

# All with the same choice of packages and features, or each would build the dependencies again.
bench: tools
	$(CARGO) build --release $(STAND_INS)
	$(SUDO) $(CARGO) bench --workspace --features gpucause-probes/bench --bench cost
	$(SUDO) $(CARGO) bench --workspace --features gpucause-probes/bench --bench daemon
	$(CARGO) bench --workspace --features gpucause-probes/bench --bench page
	$(CARGO) bench --workspace --features gpucause-probes/bench --bench evaluation

tools:
	@.ci/install clang:clang libelf.h:libelf-dev zlib.h:zlib1g-dev pkg-config:pkg-config cc:gcc

# On a host with systemd, Debian's packages also start services of their own, on ports that nothing here uses.
test-fleet: debug-stand-ins alert-tools
	@.ci/install python3:python3 pip3:python3-pip ip:iproute2 nsenter:util-linux java:default-jre-headless
	.ci/test-fleet
	$(CARGO) build -p gpucause
	$(SUDO) .ci/test-nodes
	$(SUDO) .ci/test-stragglers

# PyTorch with stand-ins.
pytorch: tools
	@.ci/install python3:python3 pip3:python3-pip nm:binutils taskset:util-linux
	.ci/pytorch/install $(TARGET_DIR)/pytorch

test-pytorch: build pytorch
	$(SUDO) python3 -B .ci/pytorch/test.py $(TARGET_DIR)/release/gpucause $(TARGET_DIR)/pytorch $(PYTORCH_ARGS)

test-gpu: build
	$(SUDO) python3 -B .ci/gpu/test.py $(TARGET_DIR)/release/gpucause

alert-tools:
	@.ci/install prometheus:prometheus promtool:prometheus prometheus-alertmanager:prometheus-alertmanager amtool:prometheus-alertmanager

test-tools: tools alert-tools
	@.ci/install clang-format:clang-format jq:jq python3:python3 nm:binutils taskset:util-linux pip3:python3-pip systemd-analyze:systemd curl:curl chromium:chromium
