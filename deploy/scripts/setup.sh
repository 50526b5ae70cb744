#!/usr/bin/env bash
# Installs what building, testing and running Skerry need on Debian or Ubuntu.
# It does nothing when all is there, and says what it installs.
set -euo pipefail

command -v go >/dev/null || { echo "setup: Go 1.26 or newer is needed; see https://go.dev/doc/install" >&2; exit 1; }
need=()
[ "${1:-}" != race ] || command -v gcc >/dev/null || need+=(gcc libc6-dev)
if [ "${1:-}" = vmtest ]; then
	command -v mmdebstrap >/dev/null || need+=(mmdebstrap)
	command -v qemu-system-x86_64 >/dev/null || need+=(qemu-system-x86)
	PATH=$PATH:/usr/sbin command -v debugfs >/dev/null || need+=(e2fsprogs)
fi
command -v bwrap >/dev/null || need+=(bubblewrap)
[ -x /usr/bin/python3 ] || need+=(python3-minimal)
/usr/bin/python3 -m pip --version >/dev/null 2>&1 || need+=(python3-pip)
command -v curl >/dev/null || need+=(curl)
command -v git >/dev/null || need+=(git)
command -v skopeo >/dev/null || need+=(skopeo)
command -v containerd >/dev/null || need+=(containerd)
PATH=$PATH:/usr/sbin command -v runc >/dev/null || need+=(runc)
command -v umoci >/dev/null || need+=(umoci)
# The test cluster: network namespaces, dropped packets, disks that stall.
PATH=$PATH:/usr/sbin:/sbin command -v ip >/dev/null || need+=(iproute2)
PATH=$PATH:/usr/sbin:/sbin command -v iptables >/dev/null || need+=(iptables)
PATH=$PATH:/usr/sbin:/sbin command -v mkfs.ext4 >/dev/null || need+=(e2fsprogs)
PATH=$PATH:/usr/sbin:/sbin command -v fsfreeze >/dev/null || need+=(util-linux)
PATH=$PATH:/usr/sbin command -v mkfs.xfs >/dev/null || need+=(xfsprogs)
[ -e /etc/ssl/certs/ca-certificates.crt ] || need+=(ca-certificates)
[ -d /usr/share/zoneinfo ] || need+=(tzdata)
programs=() # packages of which the programs alone are wanted, and not the service
command -v promtool >/dev/null && command -v prometheus >/dev/null || programs+=(prometheus)

# quietly installs packages so that none of their services starts, now or later.
quietly() {
	local policy=/usr/sbin/policy-rc.d made=
	if [ ! -e $policy ]; then
		made=yes
		printf '#!/bin/sh\nexit 101\n' | "${sudo[@]}" tee $policy >/dev/null
		"${sudo[@]}" chmod 755 $policy
	fi
	local rc=0
	install "$@" || rc=$?
	[ -z "$made" ] || "${sudo[@]}" rm -f $policy
	! command -v systemctl >/dev/null || "${sudo[@]}" systemctl disable --quiet "$@" 2>/dev/null || true
	return $rc
}

install() { "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" >/dev/null; }

all=("${need[@]}" "${programs[@]}")
if [ "${#all[@]}" -gt 0 ]; then
	if ! command -v apt-get >/dev/null; then
		echo "setup: install these with your package manager, then run again: ${all[*]}" >&2
		exit 1
	fi
	sudo=()
	if [ "$(id -u)" -ne 0 ]; then
		command -v sudo >/dev/null || { echo "setup: as root, run: apt-get install ${all[*]}" >&2; exit 1; }
		sudo=(sudo)
	fi
	echo "setup: installing ${all[*]}"
	"${sudo[@]}" apt-get update -qq
	[ "${#need[@]}" -eq 0 ] || install "${need[@]}"
	[ "${#programs[@]}" -eq 0 ] || quietly "${programs[@]}"
fi
