# Skerry's build. `make help` lists what there is.
SHELL := /bin/bash
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo 0.0.0-dev)
LDFLAGS := -s -w -X main.version=$(VERSION)
export CGO_ENABLED ?= 0
GOFLAGS_BUILD := -trimpath -buildvcs=false
BINARIES := skerry runnerd coordinator runnerd-shim
PACKAGES := ./...

.PHONY: help
help: ## Show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

.PHONY: setup
setup: ## Install what building and testing need (as root; says what it installs)
	@deploy/scripts/setup.sh

.PHONY: build
build: ## Build the four static binaries into bin/
	@mkdir -p bin
	@for b in $(BINARIES); do go build $(GOFLAGS_BUILD) -ldflags '$(LDFLAGS)' -o bin/$$b ./cmd/$$b || exit 1; done

.PHONY: tools
tools: bin/tools/buf ## Build the pinned developer tools into bin/tools/
bin/tools/buf: deploy/tools/go.mod
	@mkdir -p bin/tools
	@echo "building buf and the protobuf plugins (minutes, the first time)"
	@cd deploy/tools && go build -o $(CURDIR)/bin/tools/ github.com/bufbuild/buf/cmd/buf \
		google.golang.org/protobuf/cmd/protoc-gen-go connectrpc.com/connect/cmd/protoc-gen-connect-go
bin/tools/golangci-lint: deploy/tools/lint/go.mod
	@mkdir -p bin/tools
	@echo "building golangci-lint (minutes, the first time)"
	@cd deploy/tools/lint && go build -o $(CURDIR)/bin/tools/golangci-lint github.com/golangci/golangci-lint/v2/cmd/golangci-lint

.PHONY: gen
gen: bin/tools/buf ## Generate code from proto/
	@bin/tools/buf lint && bin/tools/buf generate

.PHONY: fmt
fmt: ## Format Go and proto files
	@gofmt -l -w $$(git ls-files '*.go') && if [ -x bin/tools/buf ]; then bin/tools/buf format -w; fi

.PHONY: lint
lint: bin/tools/golangci-lint ## Check style, import rules and common mistakes
	@test -z "$$(gofmt -l $$(git ls-files '*.go'))" || { gofmt -l $$(git ls-files '*.go'); exit 1; }
	@bin/tools/golangci-lint run $(PACKAGES)

.PHONY: test
test: setup build ## Install what the tests need and run them all
	@go vet $(PACKAGES)
	@SKERRY_REQUIRE_PROBES=1 SKERRY_BIN=$(CURDIR)/bin deploy/scripts/test.sh -timeout 15m $(PACKAGES)

.PHONY: race
RACE ?= ./runnerd/... ./coordinator/... ./proto/... ./config/... ./cmd/...
race: build ## Run the daemons' tests under the race detector (RACE=./... for all; needs a C compiler)
	@deploy/scripts/setup.sh race
	@CGO_ENABLED=1 SKERRY_REQUIRE_PROBES=1 SKERRY_BIN=$(CURDIR)/bin go test -race -timeout 20m -skip TestI3KilledAtEveryStep $(RACE)

FUZZTIME ?= 20s
.PHONY: fuzz
fuzz: ## Run every fuzz target for FUZZTIME (default 20s)
	@deploy/scripts/fuzz.sh $(FUZZTIME)

SOAK ?= 5m
.PHONY: soak
soak: build ## For SOAK (default 5m) each: collect garbage beside four writers, break clusters, copy while all are killed
	@SKERRY_SOAK=$(SOAK) go test -count=1 -timeout 0 -v -run 'TestGCWithWriters$$' ./cas
	@SKERRY_SOAK=$(SOAK) SKERRY_REQUIRE_PROBES=1 SKERRY_BIN=$(CURDIR)/bin go test -count=1 -timeout 0 -v -run 'TestI9LinearizableUnderFaults$$' ./e2e/cluster
	@SKERRY_SOAK=$(SOAK) SKERRY_REQUIRE_PROBES=1 SKERRY_BIN=$(CURDIR)/bin go test -count=1 -timeout 0 -v -run 'TestF50TransferWhileAllAreKilled$$' ./e2e/cluster

.PHONY: bench
bench: setup build ## Measure the budgets, side by side with bare bubblewrap
	@SKERRY_BIN=$(CURDIR)/bin deploy/scripts/bench.sh

.PHONY: sim
SIM ?=
sim: build ## Measure a coordinator with 10,000 simulated runners and 1 M workspaces (SIM="-coordinators 3 -workspaces 100000" for others)
	@ulimit -n "$$(ulimit -Hn)" && go run ./deploy/sim -bin bin $(SIM)

.PHONY: vmtest
vmtest: ## Run the limit, verdict and tier tests in a virtual machine with systemd and cgroup v2 (as root)
	@deploy/scripts/setup.sh vmtest
	@deploy/vmtest/vmtest run

.PHONY: demo
demo: setup build ## Start skerry dev, do real work through it, stop it
	@demo/run.sh

.PHONY: dev
dev: setup build ## Run a coordinator and a runner here until interrupted
	@bin/skerry dev

.PHONY: check
check: lint test ## Everything that must pass before a commit

.PHONY: ci
ci: ## What CI runs
	@bash .ci/run
