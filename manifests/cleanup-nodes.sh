#!/usr/bin/env bash
# First half of an uninstallation: removes what the agents set up on the nodes. It
# replaces the pods of the DaemonSet, and of KubeEdge's edges, with ones that run `edgemesh-agent cleanup`, with the
# same directories and images, and waits until every node is clean. Pods lose their
# network. Then remove the rest: helm uninstall, or kubectl delete -f.
#
#   manifests/cleanup-nodes.sh [--yes] [--dry-run] [--purge] [--no-wait] [--force]
#
# Names the nodes and waits for a yes, which --yes gives; --dry-run ends there and changes nothing.
# Refuses while a kubelet there reports its mesh address, which goes with the network: run
# `edgemesh-agent install --form daemonset --node-ip=off` on that node first. --force does not look.
# --purge also removes the nodes' keys. Nodes that run the agent in another form are
# not touched: run `edgemesh-agent uninstall` there. Set NAMESPACE=NAME if Helm
# installed to another namespace than kube-system.
set -euo pipefail
ns=${NAMESPACE:-kube-system} args='"cleanup"' wait=1 force=0 yes=0 dry=0
for a in "$@"; do
  case $a in
    --purge) args+=', "--purge"' ;;
    --no-wait) wait=0 ;;
    --force) force=1 ;;
    --yes) yes=1 ;;
    --dry-run) dry=1 ;;
    -h|--help) sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//p}' "$0"; exit 0 ;;
    *) sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//p}' "$0" >&2; exit 2 ;;
  esac
done

agents='app.kubernetes.io/name=edgemesh,app.kubernetes.io/component in (agent, edge-agent)'

# A kubelet that is set to report an address which its host lacks is reached by nobody.
reporting() {
  {
    kubectl get meshnodes.network.edgemesh.io -o 'jsonpath={range .items[*]}mesh {.metadata.name} {.status.addresses}{"\n"}{end}'
    kubectl -n "$ns" get pods -l "$agents" -o 'jsonpath={range .items[*]}pod {.spec.nodeName}{"\n"}{end}'
    kubectl get nodes -o 'jsonpath={range .items[*]}node {.metadata.name} {.status.addresses[?(@.type=="InternalIP")].address}{"\n"}{end}'
  } | awk '$1 == "mesh" {mesh[$2] = $3} $1 == "pod" {pod[$2] = 1}
    $1 == "node" && $2 in pod {for (i = 3; i <= NF; i++) if (index(mesh[$2], "\"" $i "\"")) {print $2; next}}'
}
if [ $force = 0 ]; then
  nodes=$(reporting)
  if [ -n "$nodes" ]; then
    echo "kubelet reports its mesh address, which goes with the network, on: ${nodes//$'\n'/ }" >&2
    echo "run edgemesh-agent install --form daemonset --node-ip=off there first, or use --force" >&2
    exit 1
  fi
fi

sets=edgemesh-agent
[ -z "$(kubectl -n "$ns" get daemonset edgemesh-agent-edge --ignore-not-found -o name)" ] || sets+=' edgemesh-agent-edge'

nodes=$(kubectl -n "$ns" get pods -l "$agents" -o 'jsonpath={range .items[*]}{.spec.nodeName}{"\n"}{end}' | sort -u)
purge=
case $args in *purge*) purge=', and remove their keys: they come back as other nodes' ;; esac
echo "This will end the agents of namespace $ns and remove the pod network from $(printf '%s' "$nodes" | grep -c . || true) nodes$purge; their pods lose their network:"
fold -s -w 78 <<<"${nodes//$'\n'/ }" | sed 's/^/  /'
[ $dry = 0 ] || exit 0
if [ $yes = 0 ]; then
  [ -t 0 ] || { echo "nothing was changed: repeat with --yes, or answer on a terminal" >&2; exit 2; }
  read -rp "Continue? [y/N] " answer
  case $answer in y|Y|yes|YES|Yes) ;; *) echo "nothing was changed" >&2; exit 1 ;; esac
fi

# The controller's pod has an address of the pod network: it goes while the network can still take that back.
if [ -n "$(kubectl -n "$ns" get deployment edgemesh-controller --ignore-not-found -o name)" ]; then
  kubectl -n "$ns" scale deployment edgemesh-controller --replicas=0
  kubectl -n "$ns" wait --for=delete pod -l app.kubernetes.io/name=edgemesh,app.kubernetes.io/component=controller --timeout=60s ||
    echo "the controller's pod is still there: its node is unreachable, or kubelet there cannot end it" >&2
fi

for ds in $sets; do
  # Where an init container installs the plugin, it removes it now: the agent's own container may not.
  plugin=
  [ -z "$(kubectl -n "$ns" get daemonset "$ds" -o 'jsonpath={.spec.template.spec.initContainers[?(@.name=="plugin")].name}')" ] ||
    plugin='"initContainers": [{"name": "plugin", "args": ["plugin", "--remove"]}],'

  # Old pods end first, because cleanup refuses while an agent runs. No probes: these pods exit, again and again.
  kubectl -n "$ns" patch daemonset "$ds" --type strategic -p "{\"spec\": {
    \"updateStrategy\": {\"rollingUpdate\": {\"maxSurge\": 0, \"maxUnavailable\": \"100%\"}},
    \"template\": {\"spec\": {$plugin \"containers\": [{\"name\": \"agent\", \"args\": [$args],
      \"startupProbe\": null, \"livenessProbe\": null, \"readinessProbe\": null}]}}}}"
done
[ $wait = 1 ] || exit 0

pods() { # NODE FIRST-ARGUMENT EXIT-CODES… of each pod
  kubectl -n "$ns" get pods -l "$agents" -o 'jsonpath={range .items[*]}{.spec.nodeName}{" "}{.spec.containers[0].args[0]}{" "}{.status.containerStatuses[0].state.terminated.exitCode}{" "}{.status.containerStatuses[0].lastState.terminated.exitCode}{"\n"}{end}'
}
deadline=$((SECONDS + 180))
while :; do
  # shellcheck disable=SC2086
  nodes=$(kubectl -n "$ns" get daemonset $sets -o 'jsonpath={.items[*].status.desiredNumberScheduled}{.status.desiredNumberScheduled}' | awk '{for (i = 1; i <= NF; i++) n += $i} END {print n + 0}')
  clean=$(pods | awk '$2 == "cleanup" && / 0( |$)/ {print $1}' | sort -u)
  n=$(printf '%s' "$clean" | grep -c . || true)
  echo "clean: $n of ${nodes:-0} nodes"
  [ "$n" -ge "${nodes:-0}" ] && break
  if [ $SECONDS -ge $deadline ]; then
    echo "not clean, or unreachable:" >&2
    kubectl -n "$ns" get pods -l "$agents" \
      -o 'custom-columns=NODE:.spec.nodeName,SAID:.status.containerStatuses[0].lastState.terminated.message' |
      awk -v clean="$clean" 'BEGIN {split(clean, c, "\n"); for (i in c) done[c[i]]} !($1 in done)' >&2
    exit 1
  fi
  sleep 3
done
