#!/usr/bin/env bash
# Runs go test with the given arguments and prints the packages' results, what
# was skipped and why, and, when something failed, the output of what failed.
set -uo pipefail
log=$(mktemp)
trap 'rm -f "$log"' EXIT
go test -v "$@" >"$log" 2>&1
status=$?
if [ $status -ne 0 ]; then
	grep -vE '^(=== |[[:space:]]*--- PASS|[[:space:]]*--- SKIP)' "$log" | grep -v 'no test files' | tail -n 600
fi
skipped=$(grep -B1 -E '^[[:space:]]*--- SKIP' "$log" | grep -v '^--$' || true)
[ -z "$skipped" ] || printf 'skipped, and why:\n%s\n' "$skipped"
[ $status -ne 0 ] || grep -E '^ok[[:space:]]' "$log"
exit $status
