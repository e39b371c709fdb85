#!/usr/bin/env bash
# Builds the images of agent and relay, without a container engine: `make images` (README.md). What it takes from the environment:
#   OUT                    directory for the archives (dist/images)
#   REGISTRY, TAG          of the images' names (localhost, dev)
#   ARCHES                 of amd64,arm64,arm (all)
#   VERSION, COMMIT, DATE  as the programs say them
set -euo pipefail
cd "$(dirname "$0")/../.."
out=${OUT:-dist/images} version=${VERSION:-dev}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
agent=() relay=()
for a in $(tr , ' ' <<<"${ARCHES:-amd64,arm64,arm}"); do
  case $a in
    amd64) debian=amd64 platform=linux/amd64 ;;
    arm64) debian=arm64 platform=linux/arm64/v8 ;;
    arm)   debian=armhf platform=linux/arm/v7 ;;
    *) echo "images: ARCHES: $a is not one of amd64, arm64, arm" >&2; exit 2 ;;
  esac
  dir=$work/$a bin=usr/local/bin
  for p in agent cni relay; do make -s program PROGRAM=$p GOOS=linux GOARCH=$a OUTPUT="$dir/$bin/edgemesh-$p"; done
  build/images/base.sh $debian "$dir/base"
  # Layers are dated 1970: what is the same in the next version is pulled once.
  layer() { SOURCE_DATE_EPOCH=0 build/tar.sh "$dir${2:+/$2}" "${@:3}" >"$dir/$1.tar"; }
  layer base base
  layer certificates base etc usr/share/doc/ca-certificates
  # The plugin before the agent, whose code repeats much of it and would otherwise be further away than the compressor looks (3 %).
  layer agent '' $bin/edgemesh-cni $bin/edgemesh-agent
  layer relay '' $bin/edgemesh-relay
  agent+=("$platform=$dir/base.tar,$dir/agent.tar") relay+=("$platform=$dir/certificates.tar,$dir/relay.tar")
done
mkdir -p "$out"
image() { # NAME [USER] PLATFORM…
  go run ./build/images -out "$out" -name "${REGISTRY:-localhost}/edgemesh-$1:${TAG:-dev}" -user "$2" \
    -label org.opencontainers.image.title="EdgeMesh $1" -label org.opencontainers.image.licenses=Apache-2.0 \
    -label org.opencontainers.image.description='Pod network for clusters whose nodes are behind NATs' \
    -label org.opencontainers.image.version="$version" ${COMMIT:+-label org.opencontainers.image.revision="$COMMIT"} \
    ${DATE:+-label org.opencontainers.image.created="$DATE"} "${@:3}"
}
{ image agent '' "${agent[@]}"; image relay 65532:65532 "${relay[@]}"; } >"$work/DIGESTS" # the relay's user as in the chart
cat "$work/DIGESTS"
mv "$work/DIGESTS" "$out/DIGESTS"
