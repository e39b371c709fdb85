#!/usr/bin/env bash
# Builds everything that a release consists of from one commit: `make release`. DESIGN.md lists it. What it takes from the environment:
#   VERSION       what is released, such as v0.2.0
#   OUT           directory for the results (dist/release); at the end they replace a release in it
#   ARCHES        of nodes (amd64,arm64,arm)
#   WORKSTATIONS  those who run kubectl, as OS/ARCH (linux/amd64,linux/arm64,darwin/amd64,darwin/arm64,windows/amd64)
#   IMAGES        no = without the images, which need Debian's mirror
#   DRAFT         1 = accept changed files, a version that CHANGELOG.md calls unreleased, and figures of an earlier version
#   URL           below which URL/VERSION will have the release, for krew's manifest (that of build/release/addresses)
#   KEY           PEM file with an Ed25519 or ECDSA key without passphrase that signs checksums and provenance
#   PGPKEY        file with an RSA secret key of PGP without passphrase, for Helm's provenance of the chart
set -euo pipefail
KEY=${KEY:+$(realpath -m "$KEY")} PGPKEY=${PGPKEY:+$(realpath -m "$PGPKEY")}
cd "$(dirname "$0")/../.."
export LC_ALL=C VERSION=${VERSION:-} ARCHES=${ARCHES:-amd64,arm64,arm}
WORKSTATIONS=${WORKSTATIONS-linux/amd64,linux/arm64,darwin/amd64,darwin/arm64,windows/amd64}
number=${VERSION#v} given=${URL:-}
. build/release/addresses
URL=${given:-$URL} URL=${URL%/}
url=$URL/$VERSION
export MAINTAINER
target=$(realpath -m "${OUT:-dist/release}")
out=$target.$$ # until all is made

die() { echo "release: $*" >&2; exit 1; }

# published refuses addresses that lead nowhere, and signatures that nobody can check: what is published can be pulled.
published() {
  local name
  for name in REGISTRY CHART URL MAINTAINER; do
    case ${!name} in
      *localhost* | *REGISTRY* | *.invalid* | *example.*) die "build/release/addresses: $name is '${!name}', which nobody reaches: set it and commit, or set DRAFT=1" ;;
    esac
  done
  [ -n "$KEY" ] || die "KEY: a release is signed: name the file of the key, or set DRAFT=1"
  grep -q "$(fingerprint)" SECURITY.md || die "SECURITY.md does not name the signing key: add $VERSION with the fingerprint $(fingerprint) and commit, or set DRAFT=1"
}

# fingerprint is that of the signing key.
fingerprint() { openssl pkey -in "$KEY" -pubout -outform DER | sha256sum | cut -d' ' -f1; }

# check refuses a version that the tree does not have.
check() {
  [[ $VERSION =~ ^v[0-9]+\.[0-9]+\.[0-9]+$ ]] || die "VERSION: '$VERSION' is not of the form v1.2.3"
  local line day measured
  for line in "version: $number" "appVersion: \"$number\""; do
    grep -qxF "$line" manifests/edgemesh/Chart.yaml || die "manifests/edgemesh/Chart.yaml has no line '$line': set both versions, run make manifests, and commit"
  done
  day=$(sed -n "s/^## \[${number//./\\.}\] - //p" CHANGELOG.md)
  [ -n "$day" ] || die "CHANGELOG.md has no section [$number]"
  [ -z "$KEY" ] || [[ $(openssl pkey -in "$KEY" -passin pass: -noout -text_pub) =~ ^ED25519|ASN1\ OID ]] || # of the curve of an ECDSA key
    die "KEY: $KEY has no Ed25519 or ECDSA key without a passphrase: make one with \`openssl genpkey -algorithm ed25519 -out FILE\`"
  [ -z "$PGPKEY" ] || gpg --batch --show-keys --with-colons "$PGPKEY" | grep -q '^sec:[^:]*:[^:]*:1:' || # Helm 3 verifies no other kind
    die "PGPKEY: $PGPKEY has no secret RSA key: export one without a passphrase, gpg --export-secret-keys --armor ID"
  [ -z "${DRAFT:-}" ] || return 0
  [[ $day =~ ^[0-9]{4}-[0-9]{2}-[0-9]{2}$ ]] || die "CHANGELOG.md: [$number] is dated '$day': put the day of the release there and commit, or set DRAFT=1"
  measured=$(sed -n 's/^Measured on version \([0-9.]*\) at commit .*/\1/p' docs/performance.md)
  [ "$(printf '%s\n' "$measured" "$number" | sort -V | head -1)" = "$number" ] ||
    die "docs/performance.md shows figures of version '$measured', older than $number: run \`make bench\` on a quiet machine and commit the page, or set DRAFT=1"
  published
  [ -z "$(git status --porcelain)" ] || die "files differ from the commit: commit them, or set DRAFT=1"$'\n'"$(git status --short)"
}

# addressed puts the addresses of images and chart into the pages and manifests of a directory, which name those of the tree.
addressed() {
  find "$1" -type f | xargs sed -i "s,localhost/edgemesh-,$REGISTRY/edgemesh-,g; s,localhost\\\\/edgemesh-,${REGISTRY//\//\\\\/}\\\\/edgemesh-,g
    s,^  registry: localhost\$,  registry: $REGISTRY,; s,\"default\": \"localhost\",\"default\": \"$REGISTRY\",; s,image.registry\` | \`localhost,image.registry\` | \`$REGISTRY,
    s,oci://REGISTRY/charts,$CHART,g; s,REGISTRY/edge},$REGISTRY},g"
}

# program builds one of the programs, another platform's too, and its list of contents.
program() { # PART GOOS GOARCH FILE [NAME-OF-THE-PLATFORM]
  make -s program PROGRAM="$1" GOOS="$2" GOARCH="$3" OUTPUT="$4"
  [ $# -lt 5 ] || "$cyclonedx" bin -json -noserial -notimestamp -std -version "$VERSION" -output "$out/$(basename "$4" .exe)_${number}_$5.cdx.json" "$4" 2>"$work/log" || die "$(cat "$work/log")"
}

# pages has the programs write man pages and completions, for the package that has them.
pages() {
  local part name package
  for part in agent relay cni; do
    name=edgemesh-$part package=edgemesh-${part/cni/agent}
    program $part "$(go env GOHOSTOS)" "$(go env GOHOSTARCH)" "$work/host/$name"
    mkdir -p "$work/help/$package/completions"
    "$work/host/$name" man "$work/help/$package/man"
    [ $part != cni ] || continue # called by programs
    "$work/host/$name" completion bash >"$work/help/$package/completions/$name"
    "$work/host/$name" completion zsh >"$work/help/$package/completions/_$name"
    "$work/host/$name" completion fish >"$work/help/$package/completions/$name.fish"
  done
}

# archive packs a directory of the working directory as NAME.tar.gz.
archive() { build/tar.sh "$work/archive" "$1" | gzip -9n >"$out/$1.tar.gz"; }

# node has what nodes of one architecture get: an archive, and packages.
node() { # GOARCH NAME ARCH-OF-PACKAGES
  local dir=$work/$1 top=edgemesh_${number}_linux_$2 part package
  mkdir -p "$dir" "$work/archive/$top"
  for part in agent relay cni; do program $part linux "$1" "$dir/edgemesh-$part" "linux_$2"; done
  cp -r "$dir"/edgemesh-* LICENSE README.md CHANGELOG.md manifests/systemd/*.service manifests/config/{agent,cluster,relay}.yaml docs "$work"/help/*/* "$work/archive/$top"
  addressed "$work/archive/$top/docs"
  archive "$top"
  ln -s "$PWD" "$dir/repo"
  ln -s "$work/help" "$dir/help"
  for package in agent relay; do
    sed 's,/usr/local/bin/,/usr/bin/,' manifests/systemd/edgemesh-$package.service >"$dir/edgemesh-$package.service"
  done
  for part in build/release/packages/*.sh; do sed "s/@VERSION@/$number/" "$part" >"$dir/${part##*/}"; done
  for package in agent relay; do
    for part in deb rpm; do
      (cd "$dir" && ARCH=$3 "$nfpm" package --config "repo/build/release/packages/edgemesh-$package.yaml" --packager $part --target "$out/") >"$work/log" 2>&1 || die "$(cat "$work/log")"
    done
  done
}

# plugin is that of kubectl for workstations, and krew's manifest.
plugin() {
  local os arch name top sum
  cat <<END >"$out/kubectl-edgemesh.krew.yaml"
apiVersion: krew.googlecontainertools.github.com/v1alpha2
kind: Plugin
metadata:
  name: edgemesh
spec:
  version: $VERSION
  shortDescription: See and check the EdgeMesh pod network
  description: |
    Status of all nodes and of the paths between them, checks of every node with
    what to do, ping, capture and a map, and a test of every pair of nodes.
  platforms:
END
  for os in ${WORKSTATIONS//,/ }; do
    arch=${os#*/} os=${os%/*} name=kubectl-edgemesh
    [ "$os" != windows ] || name=$name.exe
    top=kubectl-edgemesh_${number}_${os}_$arch
    program agent/kubectl-edgemesh "$os" "$arch" "$work/plugin/$top/$name" "${os}_$arch"
    cp LICENSE "$work/plugin/$top"
    build/tar.sh "$work/plugin/$top" LICENSE "$name" | gzip -9n >"$out/$top.tar.gz"
    sum=$(sha256sum <"$out/$top.tar.gz" | cut -d' ' -f1)
    cat <<END >>"$out/kubectl-edgemesh.krew.yaml"
  - selector: {matchLabels: {os: $os, arch: $arch}}
    uri: $url/$top.tar.gz
    sha256: $sum
    bin: $name
    files: [{from: "*", to: "."}]
END
  done
}

# chart is the archive that `helm package` makes, without the time of day. Artifact Hub shows the changes of CHANGELOG.md.
chart() {
  mkdir -p "$work/chart"
  cp -r manifests/edgemesh "$work/chart"
  addressed "$work/chart"
  awk -v section="## [$number]" '
    function item() { if (text) { some = 1; gsub(/["\\]/, "\\\\&", text); gsub(/`/, "", text); printf "    - {kind: %s, description: \"%s\"}\n", kind, text }; text = "" }
    BEGIN { print "  artifacthub.io/changes: |" }
    /^## / { item(); on = index($0, section) == 1 }
    !on { next }
    /^### / { item(); kind = tolower($2) }
    /^- / && kind { item(); text = substr($0, 3) }
    /^  / && text { text = text " " substr($0, 3) }
    END { item(); exit !some }' CHANGELOG.md >>"$work/chart/edgemesh/Chart.yaml" || # whose last key is annotations
    die "CHANGELOG.md: [$number] has no item below a heading such as ### Added"
  build/tar.sh "$work/chart" edgemesh | gzip -9n >"$out/edgemesh-chart-$number.tgz"
}

manifests() {
  local top=edgemesh-manifests-$number
  mkdir -p "$work/archive/$top"
  (cd manifests && cp -r edgemesh.yaml edgemesh-relay.yaml podnetwork.yaml first-steps.sh relay-kubeconfig.sh cleanup-nodes.sh \
    edge-services examples seccomp static-pod edgemesh "$work/archive/$top") # with the chart, which first-steps.sh may install
  addressed "$work/archive/$top"
  archive "$top"
}

images() {
  OUT=$work/images REGISTRY=$REGISTRY TAG=$number build/images/images.sh >/dev/null
  mv "$work/images/DIGESTS" "$out/IMAGE-DIGESTS"
  mv "$work"/images/*.tar "$out"
  # What the agent's images have of Debian, the relay's of ca-certificates.
  awk 'BEGIN { printf "{\"bomFormat\": \"CycloneDX\", \"specVersion\": \"1.6\", \"version\": 1, \"components\": [" }
    !/^#/ { printf "%s\n  {\"type\": \"library\", \"name\": \"%s\", \"version\": \"%s\", \"purl\": \"pkg:deb/debian/%s@%s?arch=%s\", \"hashes\": [{\"alg\": \"SHA-256\", \"content\": \"%s\"}]}",
      comma, $2, $3, $2, $3, $1, $4; comma = "," }
    END { print "\n]}" }' build/images/packages.lock >"$out/edgemesh-images_$number.cdx.json"
}

# provenance says from what all files were made, and how (in-toto statement, slsa.dev/spec/v1.0/provenance). It has no time and no
# invocation, so that building again gives the same.
provenance() {
  local all go lock
  go=$(go env GOVERSION)
  lock=$(sha256sum <build/images/packages.lock | cut -d' ' -f1)
  all=$(cd "$out" && sha256sum -- * | sed 's/\(.*\)  \(.*\)/{"name": "\2", "digest": {"sha256": "\1"}}/' | paste -sd,)
  cat <<END >"$out/edgemesh_$number.provenance.json"
{"_type": "https://in-toto.io/Statement/v1", "subject": [$all],
 "predicateType": "https://slsa.dev/provenance/v1", "predicate": {
  "buildDefinition": {"buildType": "$URL/make-release/v1",
   "externalParameters": {"command": "make release VERSION=$VERSION URL=$URL"},
   "resolvedDependencies": [
    {"uri": "git+edgemesh@$VERSION", "digest": {"gitCommit": "$COMMIT"}}, {"uri": "pkg:golang/toolchain@$go"},
    {"name": "build/images/packages.lock", "digest": {"sha256": "$lock"}}]},
  "runDetails": {"builder": {"id": "$URL/build/release@$VERSION"}}}}
END
}

signature() { openssl pkeyutl -sign -rawin -inkey "$KEY" -in "$1" | base64 -w0; }

# sign signs checksums and provenance. What it writes is not in SHA256SUMS, which is the same whoever signs.
sign() {
  local size payload sig file=$out/edgemesh_$number.provenance.json type=application/vnd.in-toto+json
  signature "$out/SHA256SUMS" >"$out/SHA256SUMS.sig"
  echo >>"$out/SHA256SUMS.sig"
  # DSSE, version 1 (github.com/secure-systems-lab/dsse, protocol.md).
  size=$(stat -c %s "$file")
  payload=$(base64 -w0 "$file")
  { printf 'DSSEv1 %d %s %d ' ${#type} $type "$size"; cat "$file"; } >"$work/pae"
  sig=$(signature "$work/pae")
  printf '{"payloadType": "%s", "payload": "%s", "signatures": [{"sig": "%s"}]}\n' $type "$payload" "$sig" >"$out/edgemesh_$number.intoto.jsonl"
  openssl pkey -in "$KEY" -pubout -out "$out/edgemesh_$number.pub"
  grep -q "$(fingerprint)" SECURITY.md || echo "WARNING: SECURITY.md does not name the signing key, so nobody can check it: $(fingerprint)" >&2
}

# prov is Helm's provenance of the chart: its metadata and the archive's checksum, signed in clear text (helm.sh/docs/topics/provenance).
prov() {
  local sum name=edgemesh-chart-$number.tgz gpg=(gpg --homedir "$work/gpg" --batch --quiet)
  mkdir -m 700 "$work/gpg"
  "${gpg[@]}" --import "$PGPKEY"
  sum=$(sha256sum <"$out/$name" | cut -d' ' -f1)
  { cat "$work/chart/edgemesh/Chart.yaml"; printf '\n...\nfiles:\n  %s: sha256:%s\n' "$name" "$sum"; } |
    "${gpg[@]}" --digest-algo SHA512 --clearsign >"$out/$name.prov"
  "${gpg[@]}" --export >"$out/edgemesh_$number.gpg"
}

check
COMMIT=$(git rev-parse HEAD) SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
DATE=$(date -u -d "@$SOURCE_DATE_EPOCH" +%Y-%m-%dT%H:%M:%SZ)
export COMMIT DATE SOURCE_DATE_EPOCH
[ -z "$(ls -A "$target" 2>/dev/null)" ] || [ -e "$target/SHA256SUMS" ] || die "OUT: $target is no release: name an empty directory, or remove it"
nfpm=$(build/tool.sh nfpm)
cyclonedx=$(build/tool.sh cyclonedx-gomod)
work=$(mktemp -d)
trap '[ ! -d "$work/gpg" ] || gpgconf --homedir "$work/gpg" --kill all || :; rm -rf "$work" "$out"' EXIT
mkdir -p "$out"
chart
pages
for a in ${ARCHES//,/ }; do
  case $a in
    amd64|arm64) node "$a" "$a" "$a" ;;
    arm) node arm armv7 arm7 ;;
    *) die "ARCHES: $a is not one of amd64, arm64, arm" ;;
  esac
done
plugin
manifests
[ "${IMAGES:-}" = no ] || images
provenance
(cd "$out" && sha256sum -- * >"$work/SHA256SUMS" && mv "$work/SHA256SUMS" .)
[ -z "$KEY" ] || sign
[ -z "$PGPKEY" ] || prov
rm -rf "$target"
mv -T "$out" "$target"
(cd "$target" && du -h -- *)
