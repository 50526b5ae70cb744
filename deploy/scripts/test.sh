#!/usr/bin/env bash
# Runs go test with the given arguments and prints the packages' results, what
# was skipped and why, and, when something failed, the output of the packages
# that failed and, last, what each failed test itself said.
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
if [ $status -eq 0 ]; then
	grep -E '^ok[[:space:]]' "$log"
else
	echo 'what failed, and the last that it said:'
	awk -v keep=12 '
		/^=== (RUN|CONT|NAME|PAUSE)/ { test = $3; next }
		/^[[:space:]]*--- (PASS|SKIP|FAIL): / {
			if ($2 == "FAIL:") {
				print "  " $0
				from = count[$3] > keep ? count[$3] - keep : 0
				for (i = from; i < count[$3]; i++) print "    " said[$3, i]
			}
			test = $3
			next
		}
		/^(FAIL|panic:|fatal error:|SIG|WARNING: DATA RACE)/ || /^# / || /: build failed/ { print "  " $0 }
		{ said[test, count[test]++] = substr($0, 1, 300) }' "$log" | tail -n 120
fi
exit $status
