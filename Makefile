# Everything that a change is checked with. CI runs .ci/run, which calls these.

SHELL := /usr/bin/env bash -o pipefail
.DEFAULT_GOAL := test

# Virtual time needs synctests; checks and crash points need invariants.
TAGS := synctests,invariants

# Runs go test, and fails also when a test skipped for want of a tag.
GOTEST := go run ./scripts/gotest

STATICCHECK := honnef.co/go/tools/cmd/staticcheck@v0.8.2

# The packages in which goroutines meet, those of them that exist.
CONCURRENT := $(addprefix ./,$(sort $(dir $(wildcard \
	*.go topic/*.go store/*.go broker/*.go consumer/*.go messaging/*.go consumertest/*.go \
	internal/kafka/*.go internal/devbroker/*.go internal/changelog/*.go internal/checkpoint/*.go \
	internal/admin/*.go internal/dashboard/*.go internal/sim/*.go))))

# The packages whose tests use a real Kafka when PAWL_TEST_KAFKA says where one is.
KAFKA := $(addprefix ./,$(sort $(dir $(shell grep -rl --include='*.go' PAWL_TEST_KAFKA . | sed 's|^\./||'))))

FUZZTIME ?= 10s
BENCHTIME ?= 1s
SOAKTIME ?= 2h

.PHONY: help test plain race lint kafka kafka-stop kafka-test bench bench-peers bench-broker bench-large microbench fuzz soak cover

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 14

test: ## all tests, in virtual time where they can be
	@$(GOTEST) -tags $(TAGS) ./...

plain: ## all tests as a user of the library runs them, without tags
	@go test ./...

# Timers of a bubble of virtual time that fire on two processors can crash the
# race detector's runtime (Go 1.26), so tests have one. Two tests are left out:
# they pass days of virtual time, for minutes, with goroutines that others have too.
RACE := -race -cpu 1 -timeout 20m -tags $(TAGS)
LONG := ^(TestI6ReplayIsBounded|TestOffsetOutOfRange)$$

race: ## the concurrent packages under the race detector
	@$(GOTEST) $(RACE) $(filter-out ./consumer/,$(CONCURRENT))
	@$(GOTEST) $(RACE) -skip '$(LONG)' ./consumer

lint: ## formatting, go vet and staticcheck, with and without tags; a build for another system
	@unformatted=$$(gofmt -l .) && [[ -z $$unformatted ]] || { echo "not formatted:"; echo "$$unformatted"; exit 1; }
	go vet ./...
	go vet -tags $(TAGS) ./...
	go run $(STATICCHECK) ./...
	go run $(STATICCHECK) -tags $(TAGS) ./...
	GOOS=darwin GOARCH=arm64 go build ./...

kafka: ## start a real Kafka on loopback and print its address
	@scripts/kafka start

kafka-stop: ## stop it, and delete its data
	@scripts/kafka stop

# One package at a time (-p 1): they share the node, and some restart it.
kafka-test: ## the suites that run on a real Kafka too
	@if [[ -z "$(KAFKA)" ]]; then echo "no package has tests for a real Kafka"; \
	else scripts/kafka run -- $(GOTEST) -count=1 -p 1 -timeout 20m -tags $(TAGS) $(KAFKA); fi

bench: ## throughput and latency beside plain polling, on a real Kafka; fails where they are worse than promised
	@scripts/kafka run -- go run ./bench -check

bench-peers: ## the same workloads on Kafka Streams and on Pawl, 18 minutes; PEERS='-only map -runs 1', or PEERS=-short
	@mvn -q -B -f bench/kafka-streams/pom.xml compile
	@scripts/kafka run -- go run ./bench/peers $(PEERS)

# What is counted in messages, in acks and in transactions, which take a real
# Kafka 40 ms each, has a count of its own.
bench-broker: ## the embedded broker beside kfake and a real Kafka: ratios, the table, then figures, 5 minutes
	@go test -run '^$$' -bench Ratios -benchtime 1x -timeout 10m ./broker
	@scripts/kafka run -- go test -run '^$$' -bench Table -benchtime 1x -timeout 10m ./broker
	@go test -run '^$$' -bench 'Reopen|CompactionStall' -benchtime 3x -timeout 10m ./broker

bench-large: ## large state and many shards, on a real Kafka and on the embedded broker, 15 minutes; LARGE='-only restart -keys 1000000'
	@scripts/kafka run -- go run ./bench/large $(LARGE)
	@go run ./bench/large $(LARGE)

microbench: ## the benchmarks of the packages
	@go test -run '^$$' -bench . -benchmem -benchtime $(BENCHTIME) ./...

fuzz: ## each fuzz target for FUZZTIME
	@grep -rho --include='*_test.go' '^func Fuzz[A-Za-z0-9_]*' . >/dev/null || { echo "no fuzz targets"; exit 1; }
	@grep -r --include='*_test.go' '^func Fuzz' . | sed 's|^\(.*\)/[^/]*:func \(Fuzz[A-Za-z0-9_]*\).*|\1 \2|' | sort -u | \
	while read -r dir target; do \
		echo "$$dir $$target"; \
		go test -tags $(TAGS) -run '^$$' -fuzz "^$$target\$$" -fuzztime $(FUZZTIME) "$$dir" </dev/null || exit 1; \
	done

soak: ## the seeded suites with hundreds of new seeds, then the auditor for SOAKTIME; on a real Kafka too where PAWL_TEST_KAFKA names one
	@[[ -d internal/sim ]] || { echo "internal/sim is not there yet"; exit 1; }
	PAWL_SOAK=1 go test -count=1 -timeout 0 -tags $(TAGS) -run '^(TestAudit|TestStories)$$' ./consumer
	PAWL_SOAK=$(SOAKTIME) go test -count=1 -timeout 0 -p 1 -tags $(TAGS) ./internal/sim/... ./broker
	PAWL_SOAK=$(SOAKTIME) go test -count=1 -timeout 0 -tags $(TAGS) -run '^TestSuiteOnKilledBroker$$' ./messaging

cover: ## coverage of all packages by all tests, in coverage.html
	@go test -tags $(TAGS) -coverpkg ./... -coverprofile coverage.out ./...
	@go tool cover -html coverage.out -o coverage.html
	@go tool cover -func coverage.out | tail -n 1
