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
skipped=$(awk '
	/^=== (RUN|CONT|NAME)/ { test = $3 }
	/_test\.go:[0-9]+: / { reason[test] = $0 }
	/--- SKIP: / { print "  " $3 ":" reason[$3] }' "$log")
[ -z "$skipped" ] || printf 'skipped, and why:\n%s\n' "$skipped"
[ $status -ne 0 ] || grep -E '^ok[[:space:]]' "$log"
exit $status
