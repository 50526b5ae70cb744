#!/usr/bin/env bash
# Measures the budgets side by side; see docs/performance.md and
# docs/performance-cas.md for figures. The store's part needs some 6 GiB below
# BENCH_DIR (default /var/tmp), and 25 GiB for the large file, which is left out
# where there is less.
set -euo pipefail
bin=${SKERRY_BIN:-bin}
go run ./deploy/bench -bin "$bin" "$@"
go test ./cas ./runnerd/journal ./runnerd/workspace ./sandbox ./sandbox/supervisor -run '^$' -bench . -benchtime 1s

dir=$(mktemp -d "${BENCH_DIR:-/var/tmp}/skerry-bench.XXXXXX")
trap 'rm -rf "$dir"' EXIT
large=0
if [ "$(df --output=avail -B1 "$dir" | tail -1)" -gt $((25 << 30)) ]; then
	large=$((4 << 30))
else
	echo "left out, the large file: less than 25 GiB free"
fi
mkdir "$dir/store" "$dir/transfer"
go run ./deploy/casbench --runnerd "$bin/runnerd" --dir "$dir/store" --large "$large"
go run ./deploy/casbench --runnerd "$bin/runnerd" --dir "$dir/transfer" --transfer --rounds 1
SKERRY_BIN=$bin deploy/scripts/bench-coordinator.sh
