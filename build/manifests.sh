#!/usr/bin/env bash
# Renders the plain manifests from the chart: build/manifests.sh [DIRECTORY]
#   edgemesh.yaml        everything that is the same for every cluster
#   edgemesh-relay.yaml  a relay on a public node
set -euo pipefail
cd "$(dirname "$0")/.."
out=${1:-manifests}
helm=$(build/tool.sh helm)

render() {
  "$helm" template edgemesh manifests/edgemesh --namespace kube-system \
    --set podNetwork.create=false "$@" | sed '/^# Source: /d'
}

{
  cat <<'HEAD'
# EdgeMesh for kubectl, generated from the chart by `make manifests`; do not edit.
#
#   kubectl apply -f edgemesh.yaml
#   kubectl apply -f podnetwork.yaml    # your ranges and relays; agents wait for it
#
# The controller runs on the control plane. Where that shows no Node, as in a managed cluster, choose nodes you trust first:
#
#   kubectl label node NODE node-restriction.kubernetes.io/edgemesh-controller=
#
# If agents cannot reach the API server through kube-proxy, give them its address first:
#
#   kubectl -n kube-system create configmap edgemesh-apiserver --from-literal=host=203.0.113.10 --from-literal=port=6443
HEAD
  render --include-crds
} >"$out/edgemesh.yaml.tmp"
{
  cat <<'HEAD'
# A relay on a public node of the cluster, in addition to edgemesh.yaml; generated from the
# chart by `make manifests`, do not edit.
#
#   kubectl label node NODE network.edgemesh.io/relay=true node-restriction.kubernetes.io/edgemesh-relay=
#   kubectl apply -f edgemesh-relay.yaml
#
# Label the node of a relay of release 0.2 first, too: without the second label its pod ends and no other one starts. The relay's
# addresses, for podnetwork.yaml, are in the log of its own pod, the one that a ReplicaSet owns; any node can make others with its labels:
#
#   kubectl -n kube-system get pods -l app.kubernetes.io/component=relay \
#     -o 'jsonpath={.items[?(@.metadata.ownerReferences[0].kind=="ReplicaSet")].metadata.name}'
#   kubectl -n kube-system logs POD
HEAD
  render --set relay.enabled=true -s templates/configmap-relay.yaml -s templates/relay.yaml
} >"$out/edgemesh-relay.yaml.tmp"
for f in edgemesh edgemesh-relay; do mv "$out/$f.yaml.tmp" "$out/$f.yaml"; done
