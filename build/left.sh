#!/usr/bin/env bash
# Says what make demo and make test left on this machine that `make clean` does not remove, and how to remove it.
set -euo pipefail
cache=${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/edgemesh
left=()
if [ -s "$cache/installed" ]; then
  left+=("Debian packages that were installed: $(sort -u "$cache/installed" | paste -sd' '); remove them: apt-get remove …")
fi
if [ -d "$cache" ]; then
  left+=("$cache, $(du -sh "$cache" | cut -f1): programs that tests compare with; remove it: rm -r")
fi
if command -v "${GO:-go}" >/dev/null; then
  for v in GOCACHE GOMODCACHE; do
    d=$("${GO:-go}" env $v)
    [ ! -d "$d" ] || left+=("$d, $(du -sh "$d" | cut -f1), which other Go projects use, too; empty it: go clean -$([ $v = GOCACHE ] && echo cache || echo modcache)")
  done
fi
[ ${#left[@]} -gt 0 ] || exit 0
echo "left on this machine:"
printf '  %s\n' "${left[@]}"
