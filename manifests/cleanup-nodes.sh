#!/usr/bin/env bash
# First half of an uninstallation: removes what the agents set up on the nodes. It
# replaces the DaemonSet's pods with ones that run `edgemesh-agent cleanup`, with the
# same directories and images, and waits until every node is clean. Pods lose their
# network. Then remove the rest: helm uninstall, or kubectl delete -f.
#
#   manifests/cleanup-nodes.sh [--purge] [--no-wait]
#
# --purge also removes the nodes' keys. Nodes that run the agent in another form are
# not touched: run `edgemesh-agent uninstall` there. Set NAMESPACE=NAME if Helm
# installed to another namespace than kube-system.
set -euo pipefail
ns=${NAMESPACE:-kube-system} args='"cleanup"' wait=1
for a in "$@"; do
  case $a in
    --purge) args+=', "--purge"' ;;
    --no-wait) wait=0 ;;
    -h|--help) sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//p}' "$0"; exit 0 ;;
    *) sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//p}' "$0" >&2; exit 2 ;;
  esac
done

# Old pods end first, because cleanup refuses while an agent runs. No probes: these pods exit, again and again.
kubectl -n $ns patch daemonset edgemesh-agent --type strategic -p "{\"spec\": {
  \"updateStrategy\": {\"rollingUpdate\": {\"maxSurge\": 0, \"maxUnavailable\": \"100%\"}},
  \"template\": {\"spec\": {\"containers\": [{\"name\": \"agent\", \"args\": [$args],
    \"startupProbe\": null, \"livenessProbe\": null, \"readinessProbe\": null}]}}}}"
[ $wait = 1 ] || exit 0

pods() { # NODE FIRST-ARGUMENT EXIT-CODES… of each pod
  kubectl -n $ns get pods -l app.kubernetes.io/name=edgemesh,app.kubernetes.io/component=agent -o 'jsonpath={range .items[*]}{.spec.nodeName}{" "}{.spec.containers[0].args[0]}{" "}{.status.containerStatuses[0].state.terminated.exitCode}{" "}{.status.containerStatuses[0].lastState.terminated.exitCode}{"\n"}{end}'
}
deadline=$((SECONDS + 180))
while :; do
  nodes=$(kubectl -n $ns get daemonset edgemesh-agent -o 'jsonpath={.status.desiredNumberScheduled}')
  clean=$(pods | awk '$2 == "cleanup" && / 0( |$)/ {print $1}' | sort -u)
  n=$(printf '%s' "$clean" | grep -c . || true)
  echo "clean: $n of ${nodes:-0} nodes"
  [ "$n" -ge "${nodes:-0}" ] && break
  if [ $SECONDS -ge $deadline ]; then
    echo "not clean, or unreachable:" >&2
    kubectl -n $ns get pods -l app.kubernetes.io/name=edgemesh,app.kubernetes.io/component=agent \
      -o 'custom-columns=NODE:.spec.nodeName,SAID:.status.containerStatuses[0].lastState.terminated.message' |
      awk -v clean="$clean" 'BEGIN {split(clean, c, "\n"); for (i in c) done[c[i]]} !($1 in done)' >&2
    exit 1
  fi
  sleep 3
done
