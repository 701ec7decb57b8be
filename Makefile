# Names of the few commands. The logic is in scripts/, one file a command, so that it can be read, linted and run alone.
.DEFAULT_GOAL := help
.PHONY: help gen

help: ## print this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

gen: ## generate proto/gen from proto/postrider
	@scripts/gen
