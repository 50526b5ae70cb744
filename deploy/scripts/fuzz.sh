#!/usr/bin/env bash
# Runs every fuzz target of the module for the given time each.
set -euo pipefail
time=${1:-20s}
while IFS=: read -r file target; do
	echo "fuzz $target in $(dirname "$file")"
	go test "./$(dirname "$file")" -run '^$' -fuzz "^$target\$" -fuzztime "$time"
done < <(grep -rHoE --include='*_test.go' '^func Fuzz[A-Za-z0-9_]+' . | sed -E 's|^\./||; s|:func |:|')
