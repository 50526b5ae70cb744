#!/usr/bin/env bash
# Starts "skerry dev" on a free port, does real work through it and stops it.
# Usage: demo/run.sh [DATA_DIR]; without DATA_DIR everything is removed at the end.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
skerry=$here/../bin/skerry
work=$(mktemp -d)
data=${1:-$work/data}
export SKERRY_CONTEXT=$work/context.json

"$skerry" dev --data "$data" --listen 127.0.0.1:0 --ready-file "$work/ready.json" 2>"$work/dev.log" &
dev=$!
trap 'kill $dev 2>/dev/null || true; wait $dev 2>/dev/null || true; rm -rf "$work"' EXIT
for _ in $(seq 600); do
	[ -s "$work/ready.json" ] && break
	kill -0 $dev 2>/dev/null || { echo "skerry dev ended early:" >&2; cat "$work/dev.log" >&2; exit 1; }
	sleep 0.1
done
[ -s "$work/ready.json" ] || { echo "skerry dev did not become ready in 60 s:" >&2; cat "$work/dev.log" >&2; exit 1; }

bold='' plain=''
[ -t 1 ] && bold=$'\033[1m' plain=$'\033[0m'
say() { printf '\n%s%s%s\n' "$bold" "$*" "$plain"; }

say "1. Put the data and the program into the agent's workspace"
"$skerry" file put "$here/proteins.fasta" input/proteins.fasta --if-exists overwrite
"$skerry" file put "$here/analyse.py" analyse.py --if-exists overwrite

say "2. Run the analysis in a sandbox (no network, no host files) and see its output as it comes"
"$skerry" sh 'mkdir -p results; /usr/bin/python3 analyse.py input/proteins.fasta results/proteins.csv results/hydropathy.svg; sha256sum results/* > results/SHA256SUMS'

say "3. Its durable record: what it changed, and the snapshot that was committed"
id=$("$skerry" exec list --limit 1 --json | sed -n 's/.*"executions":\[{"id":"\([^"]*\)".*/\1/p')
"$skerry" exec status "$id"

say "4. Its log, read again later"
"$skerry" exec logs "$id"

say "5. The history of the workspace"
"$skerry" workspace history

say "6. Read a result back and compare its SHA-256 with what the sandbox computed"
"$skerry" file get results/proteins.csv "$work/proteins.csv"
inside=$("$skerry" file cat results/SHA256SUMS | sed -n 's/  results\/proteins.csv$//p')
outside=$(sha256sum "$work/proteins.csv" | cut -d' ' -f1)
echo "in the sandbox: $inside"
echo "read back:      $outside"
[ "$inside" = "$outside" ] || { echo "they differ" >&2; exit 1; }
cat "$work/proteins.csv"

say "The sandbox holds: no network, no host files, not root"
"$skerry" sh 'id -un; ls /root 2>&1 || true; (exec 3<>/dev/tcp/1.1.1.1/80) 2>&1 || echo "no network"' || true
echo "demo: ok"
