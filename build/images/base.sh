#!/usr/bin/env bash
# Puts into a directory what the agent's image has of Debian: build/images/base.sh ARCHITECTURE DIRECTORY. The packages are those
# of packages.lock, whose lines are ARCHITECTURE NAME VERSION SHA256. Without arguments it prints that file for the packages that
# the mirror has now. MIRROR is one with /debian and /debian-security below it, instead of Debian's own.
set -euo pipefail
cd "$(dirname "$0")"
release=trixie
keyring=/usr/share/keyrings/debian-archive-keyring.gpg
[ -f "$keyring" ] || { echo "images: no $keyring: install the package debian-archive-keyring" >&2; exit 1; }
sources=()
[ -z "${MIRROR:-}" ] || for s in "debian $release" "debian $release-updates" "debian-security $release-security"; do
  sources+=("deb $MIRROR/$s main")
done

# extract prints an archive of the packages and of what they depend on, with their lines of a lock in the file packages. It runs
# none of their scripts, and needs no emulator for foreign architectures; apt checks the signatures.
extract() { # ARCHITECTURE PACKAGE[=VERSION],… [OPTION]
  mmdebstrap --variant=extract --format=tar --keyring="$keyring" --architectures="$1" --include="$2" "${@:3}" \
    --extract-hook='cd "$1/var/cache/apt/archives" && for deb in *.deb; do
      dpkg-deb --show --showformat "'"$1"' \${Package} \${Version} $(sha256sum <"$deb" | cut -c-64)\n" "$deb"
    done >"$1/packages"' "$release" - "${sources[@]}"
}

if [ $# = 0 ]; then
  grep '^#' packages.lock
  for arch in $(grep -v '^#' packages.lock | cut -d' ' -f1 | sort -u); do
    extract "$arch" "$(awk -v a="$arch" '$1 == a { print $2 }' packages.lock | paste -sd,)" | tar -xO ./packages | awk 'NR == FNR { has[$1 $2]; next } $1 $2 in has' packages.lock -
  done
  exit
fi

lock=$(grep "^$1 " packages.lock)
cache=${XDG_CACHE_HOME:-$HOME/.cache}/edgemesh/images
file=$cache/$release-$1-$(cat packages.lock base.sh | sha256sum | cut -c-16).tar
if [ ! -f "$file" ]; then
  mkdir -p "$cache"
  trap 'rm -f "$file.$$"' EXIT
  packages=$(awk '{ print $2 "=" $3 }' <<<"$lock" | paste -sd,)
  extract "$1" "$packages" >"$file.$$" || {
    # A mirror in the middle of a sync has lists that apt refuses. Without them nothing else can be taken: versions are those of the lock.
    echo "images: trying without $release-updates and $release-security" >&2
    extract "$1" "$packages" --setup-hook='sed -Ei "/-(updates|security) /d" "$1/etc/apt/sources.list"' >"$file.$$"
  } || { echo "images: no packages: see above; if a version was not found, Debian has replaced it: run \`make images-lock\`" >&2; exit 1; }
  if other=$(grep -vxFf <(tar -xOf "$file.$$" ./packages) <<<"$lock"); then
    echo "images: the mirror's packages are not those of packages.lock: review what changed, run \`make images-lock\` and commit it: $other" >&2
    exit 1
  fi
  mv "$file.$$" "$file"
fi

mkdir -p "$2"
# iptables in both flavours with its extensions, the loader, and the libraries that these need (TestBase), certificates, licences.
tar -xf "$file" -C "$2" --no-same-owner --wildcards './usr/sbin/xtables-nft-multi' './usr/sbin/xtables-legacy-multi' './usr/lib/*/xtables/*' './usr/lib*/ld-linux*' \
  $(printf './usr/lib/*/lib%s.so.* ' c m mnl nftnl xtables ip4tc ip6tc nfnetlink netfilter_conntrack) \
  './usr/share/ca-certificates/*' $(awk '{ print "./usr/share/doc/" $2 "/copyright" }' <<<"$lock")
cd "$2"
for d in usr/lib*; do ln -s "$d" "${d#usr/}"; done
for v in iptables ip6tables; do
  for verb in '' -save -restore; do
    ln -s xtables-nft-multi "usr/sbin/$v-nft$verb"
    ln -s xtables-legacy-multi "usr/sbin/$v-legacy$verb"
    ln -s xtables-nft-multi "usr/sbin/$v$verb"
  done
done
mkdir -p etc/ssl/certs
find usr/share/ca-certificates -name '*.crt' | LC_ALL=C sort | xargs sed -s '$a\' >etc/ssl/certs/ca-certificates.crt
rm -r usr/share/ca-certificates
