#!/usr/bin/env bash
# Builds a real YurtHub from its Go module, once, into a cache, and prints the directory:
#
#   yurthub yurt-hub.yaml (its rights and settings, of OpenYurt's chart) crds/*.yaml
#
# EDGEMESH_OPENYURT_CACHE overrides it.
set -euo pipefail
cd "$(dirname "$0")/../.."

version=v1.5.0
. test/kube/module.sh
cached openyurt "$version" "${EDGEMESH_OPENYURT_CACHE:-}"
module "github.com/openyurtio/openyurt@$version" openyurt

helm=$(build/tool.sh helm)
"$helm" template yurthub "$src/openyurt/charts/yurthub" --namespace kube-system -s templates/yurthub-cfg.yaml >"$cache/yurt-hub.yaml"
cp "$src"/openyurt/charts/yurt-manager/crds/apps.openyurt.io_nodepools.yaml "$cache/crds/"

cd "$src/openyurt"
export GOWORK=off GOFLAGS="-mod=mod -buildvcs=false"
flags="-s -w -X github.com/openyurtio/openyurt/pkg/projectinfo.gitVersion=$version"
CGO_ENABLED=0 nice -n 10 go build -ldflags "$flags" -o "$cache/yurthub" ./cmd/yurthub >&2
built
