#!/usr/bin/env bash
# Builds a release twice from one commit, in two directories, the second time with an empty compiler cache, and compares
# the checksums: build/release/twice.sh VERSION [--draft]
set -euo pipefail
cd "$(dirname "$0")/../.."
dir=$(mktemp -d)
trap 'chmod -R u+w "$dir"; rm -rf "$dir"' EXIT
git clone -q --no-hardlinks . "$dir/other place"
go run ./build/release --version "$@" --out "$dir/first"
(cd "$dir/other place" && GOCACHE=$dir/cache go run ./build/release --version "$@" --out "$dir/second")
diff "$dir/first/SHA256SUMS" "$dir/second/SHA256SUMS"
echo "equal: $(wc -l <"$dir/first/SHA256SUMS") files"
