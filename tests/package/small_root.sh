#!/usr/bin/env bash
# Runs a command in a root that has glibc, bash, a few of coreutils, and nothing else: no compiler,
# no Python, no package.
#
#   tests/package/small_root.sh FOLDER [NAME=VALUE ...] COMMAND...    FOLDER becomes /here there
#
# 77: this machine allows no such root.
set -u
folder=$(realpath "$1")
shift
small=$(mktemp -d)
trap 'rm -rf "$small"' EXIT
programs="bash env timeout cat cp date dirname grep head ls mkdir mktemp nproc realpath rm sed seq
  sleep sort stat tail tee tr uname"
mkdir -p "$small"/{bin,dev,lib64,proc,tmp,usr,var/tmp,here}
ln -s ../bin "$small/usr/bin"
for name in $programs; do
  path=$(PATH=/usr/bin:/bin command -v "$name") || { echo "there is no $name here"; exit 77; }
  cp -L "$path" "$small/bin/"
done
ln -s bash "$small/bin/sh"
# glibc comes whole: what a bundle brings needs parts of it that these programs do not.
for program in "$small"/bin/*; do ldd "$program" 2>/dev/null; done |
  grep -oE '/[^ ]+\.so[^ ]*' | sort -u | while read -r library; do
  mkdir -p "$small$(dirname "$library")"
  cp -L "$library" "$small$library"
done
glibc=$(dirname "$(ldd /bin/bash | grep -oE '/[^ ]+/libc\.so\.6')")
for library in m pthread dl rt resolv util; do
  cp -L "$glibc/lib$library".so.* "$small$glibc/" 2>/dev/null
done
unshare -rmpf --mount-proc true 2>/dev/null || exit 77
unshare -rmpf bash -c '
  small=$1 folder=$2
  shift 2
  mount --rbind /dev "$small/dev" && mount -t proc proc "$small/proc" &&
    mount --bind "$folder" "$small/here" || exit 77
  exec chroot "$small" /bin/env -i PATH=/bin HOME=/tmp "$@"' small "$small" "$folder" "$@"
