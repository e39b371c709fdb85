# shellcheck shell=bash
# Builds programs of another project from its Go modules, once, into a cache. A script changes to the repository's root,
# sources this, and calls in order:
#
#   cached NAME VERSION CACHE     ends the script if everything is built; else sets cache, and src for sources
#   module MODULE@VERSION NAME    makes $src/NAME, a copy of a module that can be written
#   built                         removes the sources, and prints the cache

cached() {
  name=$1-$2 cache=${3:-${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/edgemesh/$1-$2}
  mkdir -p "$cache"
  exec 9>"$cache/.lock"
  flock 9
  stamp=$(cat "$0" test/kube/module.sh | sha256sum)
  if [ "$(cat "$cache/.built" 2>/dev/null)" = "$stamp" ]; then
    echo "$cache"
    exit
  fi
  start=$SECONDS
  echo "building $name (once, 3 minutes on two cores)" >&2
  src=$cache/src
  rm -rf "$src" "$cache/crds"
  mkdir -p "$src" "$cache/crds"
}

module() {
  local dir
  dir=$(cd "$src" && go mod download -json "$1" | sed -n 's/^\t"Dir": "\(.*\)",/\1/p')
  cp -r "$dir" "$src/$2"
  chmod -R u+w "$src/$2"
}

built() {
  rm -rf "$src"
  echo "$stamp" >"$cache/.built"
  echo "built $name in $((SECONDS - start)) s" >&2
  echo "$cache"
}
