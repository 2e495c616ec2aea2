#!/usr/bin/env bash
# Makes what a Dockerfile starts from of Debian's packages, without a registry: images/base.sh SCRATCH NAME SUITE PACKAGES
# SCRATCH is a folder that is left as it was. Needs root, debootstrap and podman; a minute or two.
set -euo pipefail

root=$1/base
name=$2
suite=$3
packages=$4

rm -rf "$root"
trap 'rm -rf "$root"' EXIT
debootstrap --variant=minbase --include="$packages" "$suite" "$root"
# Images of Python have it under this name; what is removed is what no service reads.
[ ! -e "$root/usr/bin/python3" ] || ln -s /usr/bin/python3 "$root/usr/local/bin/python"
rm -rf "$root"/var/cache/apt/*.bin "$root"/var/cache/apt/archives/*.deb "$root"/var/lib/apt/lists/* "$root"/var/log/*.log \
    "$root"/usr/share/{doc,man,info,locale}/*
tar --create --one-file-system --directory "$root" . |
    podman import --quiet --change 'ENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin' - "$name"
