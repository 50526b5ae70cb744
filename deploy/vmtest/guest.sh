#!/bin/bash
# Runs in the machine: each case, its output and its exit code to /payload/out.
export PATH=/payload/bin:$PATH HOME=/root SKERRY_REQUIRE_PROBES=1 SKERRY_BIN=/payload/bin

# delegated runs a command alone in a unit whose control group it may divide, as
# systemd runs a daemon with Delegate=yes. -u USER runs it as that user.
delegated() {
	local as=()
	if [ "$1" = -u ]; then
		as=(--uid "$2" --setenv=HOME="/home/$2")
		shift 2
	fi
	systemd-run --quiet --pipe --wait --collect -p Delegate=yes -p DelegateSubgroup=skerry-daemon -p KillMode=process -p WorkingDirectory="$PWD" \
		--setenv=PATH="$PATH" --setenv=SKERRY_REQUIRE_PROBES=1 --setenv=SKERRY_BIN="$SKERRY_BIN" "${as[@]}" "$@"
}
export -f delegated

cd /payload || exit 1
[ ! -e full ] || export VMTEST_FULL=1
for case in cases.d/*; do
	name=${case#cases.d/}
	began=$SECONDS
	bash -eu "$case" >"out/$name.log" 2>&1 </dev/null
	echo $? >"out/$name.rc"
	echo $((SECONDS - began)) >"out/$name.seconds"
	echo "vmtest: $name ended with $(cat "out/$name.rc")"
done
sync
