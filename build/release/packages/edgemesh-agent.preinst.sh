#!/bin/sh
# dpkg: install [OLD-VERSION NEW-VERSION], upgrade OLD-VERSION NEW-VERSION, abort-upgrade …; rpm: 1 (first installation) or
# 2 (upgrade).
# An agent refuses state that a much newer one left (internal/version), and the node would have none: so the package is
# refused, while the newer agent still runs.
set -e
case "$1" in install|upgrade|1|2) ;; *) exit 0 ;; esac
own=@VERSION@ # of this package, from build/release
dir=$(sed -n 's/^stateDir: *"\{0,1\}\([^" #]*\).*/\1/p' /etc/edgemesh/agent.yaml 2>/dev/null) || true
dir=${dir:-/var/lib/edgemesh}
left=$(sed -n 's/^v\([0-9][0-9]*\.[0-9][0-9]*\)\..*/\1/p' "$dir/version" 2>/dev/null) || true
[ -n "$left" ] || exit 0
major=${own%%.*} minor=${own#*.}
minor=${minor%%.*}
if [ "${left%.*}" -gt "$major" ] || { [ "${left%.*}" -eq "$major" ] && [ "${left#*.}" -gt $((minor + 1)) ]; }; then
  echo "edgemesh-agent: $dir was used by v$left, and v$own reads what v$major.$((minor + 1)) left at most: install the versions between" >&2
  echo "one after the other, each started once, or, to give up what is in $dir except the key, remove all files there but" >&2
  echo "identity.key" >&2
  exit 1
fi
