# EdgeMesh pod network. `make help` lists the targets.
SHELL       := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

GO       ?= go
VERSION  ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
COMMIT   ?= $(shell git rev-parse HEAD 2>/dev/null || echo unknown)
DATE     ?= $(shell TZ=UTC0 git show -s --date=format-local:%Y-%m-%dT%H:%M:%SZ --format=%cd 2>/dev/null || echo unknown)
STAMP    := edgemesh/internal/version
LDFLAGS  := $(if $(DWARF),,-s -w) -X $(STAMP).number=$(VERSION) -X $(STAMP).commit=$(COMMIT) -X $(STAMP).date=$(DATE)
# Tags: net/http has no HTTP/2, 0.5 MB. Requests to the API use that of golang.org/x/net, which from Go
# 1.27 on would call net/http's, were it not for the second tag. Tests have them too, so that nothing is compiled twice.
TAGS     := nethttpomithttp2,http2legacy
# VERSION is set above, so that a clone which git considers another user's builds as well.
# One set of flags for programs, tools and tests, so that nothing is compiled twice. Debuggers' tables, which the
# linker would strip, are a tenth of the compiler's time; for a debugger: make build DWARF=1.
export CGO_ENABLED := 0
export GOFLAGS := $(shell cd / && GOTOOLCHAIN=local $(GO) env GOFLAGS 2>/dev/null) -buildvcs=false -trimpath -tags=$(TAGS) $(if $(DWARF),,-gcflags=all=-dwarf=false)
export GO
# Without the workspace, so that go.mod alone decides what is linked.
BUILD    := GOWORK=off $(GO) build -ldflags '$(LDFLAGS)'
PROGRAMS := agent relay cni
VULN     := golang.org/x/vuln/cmd/govulncheck@v1.1.4
STATIC   := honnef.co/go/tools/cmd/staticcheck@v0.7.0
LINT     := github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.5.0
FUZZTIME ?= 20s
# Images: the prefix of their names, their tag (the chart's appVersion, so that chart and images match), their platforms.
REGISTRY ?= localhost
TAG      ?= $(shell sed -n 's/^appVersion: *"\(.*\)"/\1/p' manifests/edgemesh/Chart.yaml)
ARCHES   ?= amd64,arm64,arm

.PHONY: root help build build-all program tools compile deps demo test test-all test-rest faults attack unit sim soak e2e e2e-debian e2e-moves e2e-kube e2e-versions e2e-upgrades e2e-release e2e-kubeedge e2e-openyurt e2e-flannel e2e-ways conformance map-browser map-bundle bench bench-page bench-link bench-edge bench-packets bench-egress bench-idle bench-first bench-relayed example-prometheus example-mqtt fuzz vuln lint staticcheck clean images images-lock release release-twice manifests reference helm-lint rules

help: ## list the targets
	@awk -F':.*## ' '/^[a-z0-9-]+:.*## /{printf "  make %-13s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

compile: # what the programs and test tools need, with progress
	@build/compile.sh ./agent ./relay ./cni ./test/cmd/podtool ./test/demo

build: compile ## build static linux/amd64 binaries in bin/
	@for p in $(PROGRAMS); do echo "build bin/edgemesh-$$p"; \
	  GOOS=linux GOARCH=amd64 $(BUILD) -o bin/edgemesh-$$p ./$$p; done

build-all: build ## also build linux/arm64 and linux/arm/v7, in dist/
	@for a in arm64 arm; do for p in $(PROGRAMS); do echo "build dist/linux-$$a/edgemesh-$$p"; \
	  GOOS=linux GOARCH=$$a GOARM=7 $(BUILD) -o dist/linux-$$a/edgemesh-$$p ./$$p; done; done

program: # one of PROGRAMS, or another, for GOOS and GOARCH into the file OUTPUT
	@GOARM=7 $(BUILD) -o '$(OUTPUT)' ./$(PROGRAM)

tools: build ## build the test tools in bin/
	@echo "build bin/podtool"; $(GO) build -o bin/podtool ./test/cmd/podtool

deps: ## install the Debian packages that what is made needs, the demo's by default
	@build/deps.sh $(EXTRA_DEPS)

demo: root deps tools ## run two NATed sites, a relay and a cloud node on this machine; curl between all pods
	@$(GO) build -o bin/demo ./test/demo
	@bin/demo

unit: ## run unit tests and fuzz seeds
	@$(GO) test $$($(GO) list work | grep -Ev "^edgemesh/(test/(e2e|kubeapi|manifests|bench|kube|sim)|build)(/|$$)")

test: root deps tools ## run the tests of tier test: unit, fuzz seeds, network namespaces, the demo, end to end (8 minutes)
	@exec setpriv --pdeathsig TERM build/test.sh test

test-all: test ## run make test, then the rest of what CI runs: other end-to-end tests, the Kubernetes API, images, releases (23 minutes)
	@$(MAKE) --no-print-directory test-rest

test-rest: EXTRA_DEPS = all
test-rest: root deps tools # what test-all has beyond make test
	@exec setpriv --pdeathsig TERM build/test.sh rest

root:
	@[ "$$(id -u)" = 0 ] || { echo "this makes network namespaces, which only root may: run sudo make $(MAKECMDGOALS)" >&2; exit 1; }

faults: root deps tools ## put each fault of test/faults into a copy of the tree and see which tier catches it (TIER=own|unit|test|all, ONLY='05 17')
	@test/faults/run.sh '$(or $(TIER),unit)' $(ONLY)

e2e: EXTRA_DEPS = all ufw:ufw mosquitto:mosquitto mosquitto_pub:mosquitto-clients
e2e: deps tools ## run the whole end-to-end suite: namespaces, then a real Kubernetes (KEEP=1 leaves it)
	@EDGEMESH_TIER=long $(GO) test -count=1 -timeout 150m -v ./test/e2e/...
	@EDGEMESH_TIER=long $(GO) test -count=1 -timeout 60m ./cni ./tunnel/p2p ./agent/host ./agent/policy/read ./relay
	@$(MAKE) --no-print-directory e2e-kube

e2e-debian: EXTRA_DEPS = all
e2e-debian: deps tools ## run docs/tutorial.md on fresh Debian systems, with the packages of a release
	@EDGEMESH_TIER=long $(GO) test -count=1 -timeout 30m -v ./test/debian

e2e-moves: EXTRA_DEPS = all
e2e-moves: deps tools ## move a site's uplink in five ways, 30 times each, behind three pairs of NATs; prints the gaps (40 minutes)
	@EDGEMESH_TIER=long EDGEMESH_MOVES=30 $(GO) test -count=1 -timeout 150m -parallel 3 -v -run TestMoves ./test/e2e

e2e-kube: EXTRA_DEPS = all openssl:openssl dropbear:dropbear-bin ssh:openssh-client
e2e-kube: deps tools ## run the Kubernetes half of e2e alone
	@EDGEMESH_TIER=long $(GO) test -count=1 -timeout 60m -v ./test/kube/...
	@EDGEMESH_TIER=long $(GO) test -count=1 -timeout 20m -v -run ByTheReadme ./test/kube
	@$(MAKE) --no-print-directory e2e-release e2e-versions

# KUBERNETES=v1.37.2 chooses another version for e2e-kube and conformance; test/kubeapi/build.sh builds any whose module is served, for minutes.
# e2e-versions takes several, and the oldest of each form and the newest without: KUBERNETES="v1.28.15 v1.30.14 v1.37.2".
export EDGEMESH_K8S_VERSION := $(or $(KUBERNETES),$(EDGEMESH_K8S_VERSION))
e2e-versions: KUBERNETES ?= v1.28.15 v1.30.14 v1.31.13 v1.37.2
e2e-versions: deps tools ## attack the policies on API servers of other versions (KUBERNETES=)
	@for v in $(KUBERNETES); do echo "Kubernetes $$v"; EDGEMESH_K8S_VERSION=$$v $(GO) test -count=1 -timeout 30m -parallel 2 -run '$(ATTACKS)' ./test/kubeapi || exit 1; done
ATTACKS := Nodes?(Write|Group)|TokensWithoutANode|MeshNodeStaysSmall|Controller(s|Makes)|Cloudcore|Forged|(Unt|T)rustedNodes|NetworkSchema|Rotation|EveryField|NoFieldIsDropped

e2e-upgrades: deps tools ## upgrade a cluster's control plane one minor at a time while pods talk (UPGRADES=)
	@EDGEMESH_TIER=long EDGEMESH_K8S_UPGRADE='$(or $(UPGRADES),v1.28.15 v1.29.14 v1.30.14 v1.31.13)' $(GO) test -count=1 -timeout 100m -v -run 'TestKubernetes(Up|Down)grade$$' ./test/e2e

e2e-release: EXTRA_DEPS = all openssl:openssl
e2e-release: deps tools ## install, upgrade and uninstall on a real Kubernetes, from a release and a registry
	@EDGEMESH_TIER=long EDGEMESH_RELEASE=build $(GO) test -count=1 -timeout 30m -v -run 'TestRelease$$' ./test/kube

e2e-kubeedge: EXTRA_DEPS = all openssl:openssl
e2e-kubeedge: deps tools ## run the suite on a real KubeEdge: cloudcore, and edges with edgecore
	@EDGEMESH_TIER=long EDGEMESH_KUBE=kubeedge $(GO) test -count=1 -timeout 45m -v -run KubeEdge ./test/kube
	@EDGEMESH_TIER=long EDGEMESH_KUBE=kubeedge $(GO) test -count=1 -timeout 20m -v -run SmallestCloud ./test/kube

e2e-openyurt: EXTRA_DEPS = all openssl:openssl
e2e-openyurt: deps tools ## run the suite on a real OpenYurt: YurtHub on every edge
	@EDGEMESH_TIER=long EDGEMESH_KUBE=openyurt $(GO) test -count=1 -timeout 45m -v -run OpenYurt ./test/kube

e2e-flannel: EXTRA_DEPS = all openssl:openssl
e2e-flannel: deps tools ## move a real Kubernetes from the real Flannel by the commands of docs/migrate.md, and back
	@EDGEMESH_TIER=long EDGEMESH_KUBE=flannel $(GO) test -count=1 -timeout 45m -v -run 'TestMigrateFromFlannel$$' ./test/kube

e2e-ways: EXTRA_DEPS = all openssl:openssl
e2e-ways: deps tools ## install in every way that the pages describe and no other suite runs, on clusters of their own (test/ways)
	@EDGEMESH_TIER=long $(GO) test -count=1 -timeout 90m -v -run 'TestWays$$' ./test/kube

conformance: EXTRA_DEPS = all openssl:openssl busybox:busybox dig:bind9-dnsutils host:bind9-host nc.openbsd:netcat-openbsd iperf:iperf wget:wget
conformance: deps tools ## run Kubernetes' own [sig-network] Conformance tests on the cluster of e2e-kube; FULL=1 adds all that need no cloud, and upstream's chained plugins; ONLY=policies runs those of NetworkPolicies alone; FAMILIES=ipv4,ipv6 or ipv6,ipv4; ON=kubeedge or openyurt
	@EDGEMESH_KUBE='$(ON)' FAMILIES='$(FAMILIES)' EDGEMESH_TIER=long EDGEMESH_CONFORMANCE='$(or $(ONLY),$(if $(FULL),full,1))' $(GO) test -count=1 -timeout 90m -v -run 'TestConformance$$' ./test/kube
	@$(if $(FULL),EDGEMESH_TIER=long $(GO) test -count=1 -timeout 30m -v -run 'TestUpstream$$' ./cni)

map-browser: EXTRA_DEPS = $(if $(shell command -v chromium),,chromium-headless-shell:chromium-headless-shell) npm:npm
map-browser: deps ## test the live map's page in a Chromium; needs npm's registry; screenshots go to SHOTS, an existing directory
	@EDGEMESH_TIER=long EDGEMESH_BROWSER='$(or $(abspath $(SHOTS)),1)' $(GO) test -count=1 -v -run 'TestBundle|TestPage|TestScenes|TestStale|TestFocus|TestSmooth' ./agent/livemap

map-bundle: ## fetch the live map's drawing library as web/package-lock.json names it
	@d=$$(mktemp -d); trap 'rm -rf "$$d"' EXIT; cp agent/livemap/web/package*.json "$$d"; \
	  (cd "$$d" && npm ci --ignore-scripts --omit=dev --no-audit --no-fund); \
	  gzip -9nc "$$d/node_modules/cytoscape/dist/cytoscape.min.js" >agent/livemap/web/cytoscape.min.js.gz; cp "$$d/node_modules/cytoscape/LICENSE" agent/livemap/web/cytoscape.LICENSE

comma := ,
# Benchmarks: ROUNDS=3 and SECONDS_PER_FLOW=4, for example, set how long they take.
BENCH = test/bench/run.sh $(if $(ROUNDS),-rounds $(ROUNDS)) $(if $(SECONDS_PER_FLOW),-time $(SECONDS_PER_FLOW)s)

bench: EXTRA_DEPS = all
bench: deps tools ## compare with veth, VXLAN, wireguard-go and Nebula; writes test/bench/results, docs/performance.md (25 minutes)
	@$(BENCH) -out test/bench/results -page docs/performance.md
	@$(BENCH) -cells . -cells-always

bench-page: ## render the benchmark's pages again from test/bench/results/results.json
	@$(GO) run ./test/bench -render -out test/bench/results -page docs/performance.md

bench-link: EXTRA_DEPS = all
bench-link: deps tools ## measure links of every shape: thin, deep queues, lossy, lopsided; writes docs/measurements/links (90 minutes; continues where it stopped; DRAWN=1: 40 links drawn by a seed; CARRIERS='bare BBR,edgemesh-before,edgemesh-tcp', OUT=directory)
	@$(BENCH) -cells . $(if $(DRAWN),-drawn) $(if $(CARRIERS),-carriers '$(CARRIERS)') -out $(or $(OUT),docs/measurements/$(if $(DRAWN),drawn,links))

bench-edge: EXTRA_DEPS = all
bench-edge: deps tools ## measure CPU, context switches and frames at the rates of an edge, beside wireguard-go; prints only (8 minutes; BEFORE=commit: beside that, too)
	@$(BENCH) -parts edge $(if $(ROUNDS),,-rounds 6) $(if $(BEFORE),-before $(BEFORE) -carriers wireguard-go$(comma)edgemesh-before$(comma)edgemesh)

bench-packets: EXTRA_DEPS = all
bench-packets: deps tools ## measure the highest rate of datagrams without loss; prints only (4 minutes)
	@$(BENCH) -parts packets

bench-egress: EXTRA_DEPS = all
bench-egress: deps tools ## measure the cost of iptables, ipset and routes by number of peers; prints only (2 minutes)
	@$(BENCH) -parts egress

bench-idle: EXTRA_DEPS = all
bench-idle: deps tools ## measure what a member costs whose pods say little, at its router; prints only (15 minutes; LONG=1: an hour of silence, too)
	@$(GO) run ./test/idle $(if $(TIME),-time $(TIME)) $(if $(LONG),-silence 1h) $(if $(BIN),-bin '$(BIN)') -v

bench-first: EXTRA_DEPS = all
bench-first: deps tools ## measure first requests to peers never met, in round trips; prints only (8 minutes)
	@$(GO) run ./test/first $(if $(BIN),-bin '$(BIN)')

bench-relayed: EXTRA_DEPS = all
bench-relayed: deps tools ## measure flows and pings through a relay whose legs lose packets, beside bare BBR; prints only (10 minutes)
	@$(GO) run ./test/relayed $(if $(BIN),-bin '$(BIN)')

sim: tools ## put clusters of up to 100,000 members before the parts of an agent, 10,000 before a relay, hours of churn; prints only (30 minutes)
	@EDGEMESH_TIER=long $(GO) test -count=1 -timeout 120m -v ./test/sim

example-prometheus: deps tools ## have a Prometheus in the cloud scrape two edges behind NATs, in the lab (manifests/examples/prometheus)
	@EDGEMESH_NOBUILD=1 EDGEMESH_TIER=long $(GO) test -count=1 -v -run 'TestExamplePrometheus$$' ./test/e2e

example-mqtt: EXTRA_DEPS = mosquitto:mosquitto mosquitto_pub:mosquitto-clients
example-mqtt: deps tools ## have a machine behind a NAT publish to an MQTT broker in the cloud, in the lab (manifests/examples/mqtt)
	@EDGEMESH_NOBUILD=1 EDGEMESH_TIER=long $(GO) test -count=1 -v -run 'TestExampleMQTT$$' ./test/e2e

soak: EXTRA_DEPS = all
soak: deps tools ## let things fail on four nodes for an hour, and see that nothing grows (SOAK=10m, SEED of an earlier run)
	@EDGEMESH_TIER=long EDGEMESH_SOAK='$(or $(SOAK),60m)' EDGEMESH_SOAK_SEED='$(SEED)' $(GO) test -count=1 -timeout 24h -v -run 'TestSoak$$' ./test/e2e

images: ## build OCI archives of agent and relay in dist/images (REGISTRY, TAG, ARCHES)
	@REGISTRY='$(REGISTRY)' TAG='$(TAG)' VERSION='$(VERSION)' COMMIT='$(COMMIT)' DATE='$(DATE)' ARCHES='$(ARCHES)' build/images/images.sh

images-lock: ## update packages.lock to the Debian packages now on the mirror
	@lock=$$(build/images/base.sh) && echo "$$lock" >build/images/packages.lock

RELEASE = VERSION='$(VERSION)' DRAFT='$(DRAFT)' URL='$(URL)' KEY='$(abspath $(KEY))' PGPKEY='$(abspath $(PGPKEY))'
release: ## build all parts of a release in dist/release (VERSION=v0.2.0; DRAFT=1 before its date; KEY=FILE.pem, PGPKEY=FILE.asc sign)
	@$(RELEASE) build/release/release.sh

bump: ## begin the next version: chart, manifests, pages, changelog (VERSION=, greater than the last)
	@build/release/bump.sh '$(VERSION)'

release-twice: ## build a release twice from one commit and compare the digests
	@$(RELEASE) build/release/twice.sh

manifests: ## render manifests/edgemesh.yaml and edgemesh-relay.yaml from the chart
	@build/manifests.sh

reference: ## write the pages that are made from code: docs/reference, the chart's README
	@EDGEMESH_UPDATE=1 $(GO) test -count=1 -run TestReference ./test/reference ./agent ./agent/findings ./relay

helm-lint: ## lint the chart and validate what it renders
	@$(GO) test -count=1 ./test/manifests/...

rules: ## test the chart's alert rules and scrape configuration with promtool, and its dashboards on a Prometheus
	@$(GO) test -count=1 -v -run 'TestRules|TestPrometheus' ./test/manifests

attack: EXTRA_DEPS = all openssl:openssl ufw:ufw
attack: deps tools ## run every test that docs/security.md names for what an attacker cannot do
	@EDGEMESH_TIER=long $(GO) run ./test/cmd/attack

fuzz: ## run every fuzz target for FUZZTIME (default 20s)
	@build/fuzz.sh $(FUZZTIME)

vuln: ## compare the dependencies that are called with the Go vulnerability database
	@build/vuln.sh $(GO) $(VULN)

staticcheck: ## run staticcheck alone, as make test-all does
	@$(GO) run $(STATIC) work

lint: ## run golangci-lint with the house rules, import direction among them
	@$(GO) run $(LINT) run $$($(GO) list -m -f '{{.Dir}}/...')

clean: ## remove build results, and namespaces that a killed run left behind; say what is left on the machine
	@if [ -x bin/podtool ] && [ "$$(id -u)" = 0 ]; then bin/podtool lab reap; fi
	@rm -rf bin dist
	@build/left.sh
