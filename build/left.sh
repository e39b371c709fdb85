#!/usr/bin/env bash
# Says what make demo and make test left on this machine that `make clean` does not remove, and how to remove it.
set -euo pipefail
cache=${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/edgemesh
left=()
if [ "$(id -u)" != 0 ]; then
  left+=("what root's runs installed and built: sudo make clean lists it")
fi
if [ -s "$cache/installed" ]; then
  left+=("Debian packages that were installed: $(sort -u "$cache/installed" | paste -sd' '); to remove them: apt-get remove and these names")
fi
if [ -d "$cache" ]; then
  left+=("$cache, $(du -sh "$cache" | cut -f1): programs that tests compare with; to remove it: rm -r $cache")
fi
if command -v "${GO:-go}" >/dev/null; then
  for v in GOCACHE GOMODCACHE; do
    d=$("${GO:-go}" env $v)
    [ ! -d "$d" ] || left+=("$d, $(du -sh "$d" | cut -f1), which other Go projects use as well; to empty it: go clean -$([ $v = GOCACHE ] && echo cache || echo modcache)")
  done
fi
[ ${#left[@]} -gt 0 ] || exit 0
echo "left on this machine:"
printf '  %s\n' "${left[@]}"
