#!/usr/bin/env bash
# Measures the coordinator's budgets: assignments on three nodes against the bare
# Raft library, in turn in one run; idle memory and fail-over of a real cluster.
set -euo pipefail
rounds=${BENCH_ROUNDS:-3}
out=$(mktemp)
trap 'rm -f "$out"' EXIT
go test -c -o "$out.test" ./coordinator
trap 'rm -f "$out" "$out.test"' EXIT
for _ in $(seq "$rounds"); do # in turn, so that noise of the machine hits both
	(cd coordinator && "$out.test" -test.run '^$' -test.bench '^(BenchmarkBareRaft3|BenchmarkFleetAssign)$' -test.benchtime 3s) | grep changes/s | tee -a "$out"
done
awk '{for (i = 2; i <= NF; i++) if ($i == "changes/s") {name = $1; sub(/-[0-9]+$/, "", name); sum[name] += $(i-1); n[name]++}}
END {ours = sum["BenchmarkFleetAssign"] / n["BenchmarkFleetAssign"]; bare = sum["BenchmarkBareRaft3"] / n["BenchmarkBareRaft3"]
printf "assignments, 3 nodes: %.0f/s, bare Raft library with the same store and TLS: %.0f/s, ratio %.0f %%; budget >= 70 %%\n", ours, bare, 100 * ours / bare}' "$out"
go run ./deploy/bench -cluster 10
