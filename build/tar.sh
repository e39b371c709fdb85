#!/usr/bin/env bash
# Packs what is below a directory, or only the named members, to stdout: build/tar.sh DIRECTORY [MEMBER…]. It is owned by root and
# all of one time, SOURCE_DATE_EPOCH, so that equal content is equal bytes.
set -euo pipefail
dir=$1; shift
exec tar --create --format=gnu --sort=name --mtime="@${SOURCE_DATE_EPOCH:-0}" --owner=0 --group=0 --numeric-owner --mode=u=rwX,go=rX -C "$dir" "${@:-.}"
