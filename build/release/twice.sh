#!/usr/bin/env bash
# Builds a release twice from one commit, in two directories, the second time with an empty compiler cache, and compares
# the checksums: `make release-twice`, with what release.sh takes from the environment.
set -euo pipefail
cd "$(dirname "$0")/../.."
dir=$(mktemp -d)
trap 'chmod -R u+w "$dir"; rm -rf "$dir"' EXIT
git clone -q --no-hardlinks . "$dir/other place"
OUT=$dir/first build/release/release.sh
OUT=$dir/second GOCACHE=$dir/cache "$dir/other place/build/release/release.sh"
diff "$dir/first/SHA256SUMS" "$dir/second/SHA256SUMS"
echo "equal: $(wc -l <"$dir/first/SHA256SUMS") files"
