# Names of the few commands. The logic is in scripts/, one file a command, so that it can be read, linted and run alone.
.DEFAULT_GOAL := help
.PHONY: help up down demo test volume check gen fmt lint tidy breaking vuln test-fresh mutants fuzz soak images bench chaos

help: ## print this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

up: ## build and run every service here until Ctrl-C (ARGS="--hosts 2"; DETACH=1: in the background)
	@scripts/up $(ARGS)

down: ## end what DETACH=1 make up started
	@scripts/down

demo: ## two hosts, 50,000 real webhooks, one host killed: every promise checked (ARGS="-messages 100000")
	@scripts/demo $(ARGS)

test: ## run every test, with the race detector, and the volumes without it (at most 10 minutes)
	@scripts/test

volume: ## only the tests of rates and volumes, in full: 100,000 changes, 200,000 partitions, a snapshot held for 40 s
	@scripts/volume

check: ## what must pass before a change lands: generated code, format, lint, vet, tests; seconds per stage
	@scripts/check

gen: ## generate proto/gen from proto/postrider
	@scripts/gen

fmt: ## format Go and .proto files
	@scripts/fmt

lint: ## golangci-lint, shellcheck, buf
	@scripts/lint

tidy: ## make every go.mod stand alone, without the workspace
	@scripts/tidy

breaking: ## fail if a public contract broke since main
	@scripts/breaking

vuln: ## known vulnerabilities in what we depend on
	@scripts/vuln

test-fresh: ## follow the README in an empty Debian root (needs root and debootstrap)
	@scripts/test-fresh

bench: ## measure through the API beside bare SQL, and fail if that is not good enough (ARGS="-rounds 3 -run REST", "-profile DIR")
	@scripts/bench $(ARGS)

chaos: ## break a fleet of real processes for two minutes and check what its clients saw (CHAOS=10m SEED=7)
	@scripts/chaos

mutants: ## break the code on purpose and see the named tests go red
	@scripts/mutants

fuzz: ## every fuzz test for 30 s each
	@scripts/fuzz

soak: ## hours, by hand: a foreign snapshot held for 10 minutes, hints lost, every mutant, every fuzz test for 10 minutes
	@scripts/soak

images: ## build a container image of every service (needs an engine)
	@scripts/images
