#!/usr/bin/env bash
# Measures the budgets side by side; see docs/performance.md for figures.
set -euo pipefail
go run ./deploy/bench -bin "${SKERRY_BIN:-bin}" "$@"
go test ./cas ./runnerd/journal ./runnerd/workspace ./sandbox/supervisor -run '^$' -bench . -benchtime 1s
