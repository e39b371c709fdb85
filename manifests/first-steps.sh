#!/usr/bin/env bash
# Installs EdgeMesh in the required order: manifest, pod network, relay, then the relay's
# address into the pod network. Safe to repeat. It applies the plain manifests with
# kubectl; for what they have no place for it installs the chart, with helm.
set -euo pipefail
cd "$(dirname "$0")"

usage() {
  cat <<'USAGE'
Usage: first-steps.sh --pod-cidr CIDR [options]
  --pod-cidr CIDR         a pod range of the cluster (repeat for IPv6)
  --relay ADDR            an address of a relay outside the cluster, as it prints it (repeat for each)
  --relay-node NODE       run a relay on this node, which must have a public address
  --announce IP           that address, if the node is behind a 1:1 NAT
  --api-server HOST:PORT  where nodes reach the API server (default: as before; at first the
                          kubeconfig's, unless that is a loopback address); "" means through
                          kube-proxy. Where running agents and relays then need a restart, the
                          script prints how
  --registry NAME         the images are NAME/edgemesh-agent and NAME/edgemesh-relay
  --no-wait               do not wait for the agents
With helm (always before Kubernetes 1.31), as its release "edgemesh", or the one that is there:
  --namespace NAME        instead of kube-system; made if it is not there
  --platform NAME         kubeedge, openyurt, k3s or kubernetes
  --cni-conf DIR          where the nodes' runtime looks for CNI's configuration
  --cni-bin DIR           and for its plugins
  --set KEY=VALUE         any other value of the chart (repeat for each); before Kubernetes 1.30
                          podNetwork.trustedNodes=true is needed: every node may write the others' objects there

Examples:
  first-steps.sh --pod-cidr 10.244.0.0/16 --relay /ip4/203.0.113.5/tcp/4470/p2p/12D3KooW… --relay /ip4/203.0.113.5/udp/4470/quic-v1/p2p/12D3KooW…
  first-steps.sh --pod-cidr 10.244.0.0/16 --relay-node cloud-1
USAGE
}

ns=kube-system helm=0 registry='' values=() cidrs=() relays=() relay_node='' announce='' api='?' given=0 wait=1
while [ $# -gt 0 ]; do
  case $1 in
    --pod-cidr|--relay|--relay-node|--announce|--registry|--namespace|--platform|--cni-conf|--cni-bin|--set) [ -n "${2:-}" ] || { echo "first-steps.sh: $1 needs a value" >&2; exit 2; } ;;
    --api-server) [ $# -gt 1 ] || { echo "first-steps.sh: $1 needs a value" >&2; exit 2; } ;;
  esac
  case $1 in
    --pod-cidr) cidrs+=("$2"); shift ;;
    --relay) relays+=("$2"); shift ;;
    --relay-node) relay_node=$2; shift ;;
    --announce) announce=$2; shift ;;
    --api-server) api=$2 given=1; shift ;;
    --registry) registry=$2; shift ;;
    --namespace) ns=$2 helm=1; shift ;;
    --platform)
      case $2 in
        kubeedge) values+=(--set kubeedge.enabled=true) ;;
        openyurt|k3s|kubernetes) ;; # the chart's values fit them
        *) echo "first-steps.sh: --platform $2 is not one of kubeedge, openyurt, k3s, kubernetes" >&2; exit 2 ;;
      esac
      shift ;;
    --cni-conf) values+=(--set agent.hostPaths.cniConf="$2"); shift ;;
    --cni-bin) values+=(--set agent.hostPaths.cniBin="$2"); shift ;;
    --set) values+=(--set "$2"); shift ;;
    --no-wait) wait=0 ;;
    -h|--help) usage; exit 0 ;;
    *) echo "first-steps.sh: unknown option $1" >&2; usage >&2; exit 2 ;;
  esac
  shift
done
if [ ${#cidrs[@]} = 0 ]; then usage >&2; exit 2; fi
# What the script puts into JSON; the relay's addresses are also what its log is searched for.
address='/(ip4|ip6|dns|dns4|dns6)/[0-9A-Za-z.:-]+/(tcp|udp)/[0-9]+(/(quic-v1|tls|ws|wss))*/p2p/[1-9A-HJ-NP-Za-km-z]{40,64}'
for r in "${relays[@]}"; do
  [[ $r =~ ^$address$ ]] || { echo "first-steps.sh: --relay $r is not an address as a relay prints it: /ip4/203.0.113.5/tcp/4470/p2p/12D3KooW…" >&2; exit 2; }
done
for c in "${cidrs[@]}"; do
  [[ $c =~ ^[0-9a-fA-F.:]+/[0-9]+$ ]] || { echo "first-steps.sh: --pod-cidr $c is not a range like 10.244.0.0/16" >&2; exit 2; }
done
if [[ -n $announce && ! $announce =~ ^[0-9a-fA-F.:]+$ ]]; then echo "first-steps.sh: --announce $announce is not an IP address" >&2; exit 2; fi

least=28
version=$(kubectl get --raw /version | tr -d ' \n')
minor=$(sed -n 's/.*"minor":"\([0-9]*\).*/\1/p' <<<"$version")
case $version in *'"major":"1"'*) ;; *) minor='' ;; esac
if [ -n "$minor" ] && [ "$minor" -lt $least ]; then
  echo "first-steps.sh: this cluster is Kubernetes 1.$minor, EdgeMesh needs 1.$least or later. Upgrade the cluster," \
    "or use a membership file." >&2
  exit 1
fi

refuse() { echo "first-steps.sh: $*" >&2; exit 1; }
step() { printf '\n== %s\n' "$*"; }
# JSON list of the arguments, which contain no quotes.
list() {
  local a s='[' sep=''
  for a in "$@"; do s+="$sep\"$a\"" sep=', '; done
  echo "$s]"
}

# Everything is looked at before anything is changed. Our DaemonSet says where we are, and by which of helm's releases;
# those of other pod networks are known by name.
there=0 release='' others=''
sets=$(kubectl get daemonsets -A --no-headers -o \
  'custom-columns=:.metadata.namespace,:.metadata.name,:.metadata.annotations.meta\.helm\.sh/release-name')
while read -r at name by; do
  case $name in
    edgemesh-agent)
      [ "$at" = "$ns" ] || refuse "EdgeMesh is installed in the namespace $at: add --namespace $at"
      there=1 release=${by#<none>} ;;
    kube-flannel-ds*|flannel|calico-node|canal|rke2-canal|cilium|kindnet|weave-net|antrea-agent|kube-router|kube-ovn-cni|ovnkube-node|aws-node|anetd)
      others+=" $at/$name" ;;
  esac
done <<<"$sets"
# k3s has Flannel in its own program: only Nodes show it.
k3s=$(kubectl get nodes -o \
  'jsonpath={range .items[*]}{.metadata.annotations.k3s\.io/node-args} {.metadata.annotations.flannel\.alpha\.coreos\.com/backend-type}{"\n"}{end}')
if grep -q '^\[.*\] .' <<<"$k3s" && ! grep -q 'flannel-backend[=", ]*none' <<<"$k3s"; then
  others+=" k3s's own Flannel (ended by k3s server --flannel-backend=none)"
fi

# Two pod networks on the same nodes: half of the pods would be in each.
kept() {
  local config
  case "${values[*]}" in *cniMode=keep*) return 0 ;; *cniMode=own*) return 1 ;; esac
  # An earlier run may have set that.
  config=$(kubectl -n "$ns" get configmap edgemesh-agent --ignore-not-found -o 'jsonpath={.data.agent\.yaml}')
  grep -qE '^cniMode: keep|"cniMode":"keep"' <<<"$config"
}
if [ -n "$others" ] && ! kept; then
  case $others in
    */kube-flannel-ds*|*/flannel*|*"k3s's own Flannel"*)
      refuse "this cluster has another pod network:$others. With keep (--set agent.cniMode=keep), EdgeMesh carries only what" \
        "Flannel has no route for: keep Flannel off the edges, or move over: docs/migrate.md" ;;
  esac
  refuse "this cluster has another pod network:$others. To replace it, drain the nodes and uninstall it first;" \
    "to leave the pods with it, add --set agent.cniMode=keep (docs/choices.md)"
fi

# Before 1.30 no policy keeps a node from writing another's objects, so the chart wants it said that every node is trusted.
trust=()
if [ "${minor:-31}" -lt 30 ]; then
  trust=(--set podNetwork.trustedNodes=true)
  [[ " ${values[*]}" = *podNetwork.trustedNodes=true* ]] ||
    [ "$(kubectl get podnetwork cluster --ignore-not-found -o 'jsonpath={.spec.trustedNodes}' 2>/dev/null || true)" = true ] ||
    refuse "on Kubernetes 1.$minor any node can write the others' peer IDs and take their traffic, because the API server has no" \
      "ValidatingAdmissionPolicies. Upgrade the cluster to 1.30 or later, or add ${trust[*]} if you trust every node with that"
fi

# With such an option, or when it is one already, it is a release of helm's. edgemesh.yaml is for 1.31 and later; the chart has what
# an older API server takes.
if [ "${minor:-31}" -lt 31 ]; then helm=1; fi
if [ $helm = 1 ] || [ ${#values[@]} -gt 0 ]; then
  helm=1
  if [ $there = 1 ] && [ -z "$release" ]; then
    refuse "these options, or Kubernetes before 1.31, need helm, and EdgeMesh was installed with the plain manifests, which helm leaves alone. Have it take" \
      "them over, then run this again: helm upgrade --install edgemesh edgemesh -n $ns --take-ownership --set podNetwork.create=false${trust:+ ${trust[*]}}" \
      "(helm 3.17 or later, in $PWD; with a relay in the cluster also --set relay.enabled=true, and with a registry --set image.registry=NAME)"
  fi
elif [ -n "$release" ] || [ -n "$(kubectl -n "$ns" get secret -l owner=helm,name=edgemesh -o name)" ]; then
  helm=1
fi
release=${release:-edgemesh}
# The pod network is the release's, unless it was made otherwise: what the operator set there would be lost.
create=true have=$(kubectl get podnetwork cluster --ignore-not-found -o 'jsonpath={.metadata.name}{range .spec.relays[*]}{"\n"}{@}{end}' 2>/dev/null || true)
if [ $helm = 1 ]; then
  command -v helm >/dev/null || refuse "these options, or Kubernetes before 1.31, need helm, which is not there (https://helm.sh)"
  [ -z "$registry" ] || values+=(--set image.registry="$registry")
  made=$(helm get manifest "$release" -n "$ns" 2>/dev/null || true)
  if [ "${minor:-31}" -lt 30 ] && [[ $made = *$'\n'"kind: ValidatingAdmissionPolicy"* ]]; then
    refuse "this control plane stepped back to 1.$minor, and helm's record of $release names kinds that it does not have:" \
      "docs/compatibility.md, 'A step back', says how helm takes over what is there"
  fi
  if [ -n "$have" ] && [[ $made != *$'\n'"kind: PodNetwork"* ]]; then
    create=false
    case " ${values[*]}" in
      *' podNetwork.'*) refuse "PodNetwork/cluster was not made by helm, so --set podNetwork.… would change nothing: kubectl edit podnetwork cluster" ;;
    esac
  fi
fi
# Whoever is root on the controller's node has its credentials, so only such nodes run it. An existing release's own label is the
# chart's to compare.
may=node-restriction.kubernetes.io/edgemesh-controller
if [[ $there$helm != 11 && " ${values[*]}" != *' controller.'* ]] && [ -n "$(kubectl get nodes -o name)" ] &&
  [ -z "$(for l in node-role.kubernetes.io/control-plane $may; do kubectl get nodes -l $l --field-selector spec.unschedulable!=true -o name; done)" ]; then
  refuse "no Node may run the controller: it runs on the control plane only, or where an administrator allows it; cordoned Nodes do not count." \
    "Choose nodes that you trust with the cluster, no edges, and run: kubectl label node NODE $may="
fi
# Existing relays stay, the given ones are added.
mapfile -t relays < <({ tail -n +2 <<<"$have"; [ ${#relays[@]} = 0 ] || printf '%s\n' "${relays[@]}"; } | awk 'NF && !seen[$0]++')

if [ $helm = 1 ] && [ "$ns" != kube-system ] && [ -z "$(kubectl get namespace "$ns" --ignore-not-found -o name)" ]; then
  kubectl create namespace "$ns"
  kubectl label namespace "$ns" pod-security.kubernetes.io/enforce=privileged # agents are on the nodes' network
fi

# In a release the chart's value goes before the ConfigMap.
configured() { kubectl -n "$ns" get configmap edgemesh-apiserver --ignore-not-found -o 'jsonpath={.data.host} {.data.port}'; }
valued() {
  local env='.spec.template.spec.containers[0].env'
  kubectl -n "$ns" get daemonset edgemesh-agent --ignore-not-found -o \
    "jsonpath={${env}[?(@.name==\"KUBERNETES_SERVICE_HOST\")].value} {${env}[?(@.name==\"KUBERNETES_SERVICE_PORT\")].value}"
}
before=$(configured) now=$(valued) server=()
now=${now# } now=${now:-$before}
if [ $given = 0 ] && [ -z "$now" ] && [ $there = 0 ]; then
  api=$(kubectl config view --minify -o 'jsonpath={.clusters[0].cluster.server}')
  api=${api#https://} api=${api%%/*}
  case $api in
    127.*|localhost:*|'[::1]'*) api='' ;;
    *:*|'') ;;
    *) api+=:443 ;;
  esac
fi
if [ "$api" = '?' ] && [ -n "$now" ]; then
  step "agents reach the API server at ${now/ /:}, as before"
elif [ "$api" = '?' ] || [ -z "$api$before$now" ]; then
  step "agents reach the API server through kube-proxy (to change this: --api-server)"
elif [ -z "$api" ]; then
  step "agents reach the API server through kube-proxy"
  server=(--set apiServer.host=)
  kubectl -n "$ns" delete configmap edgemesh-apiserver --ignore-not-found
else
  step "agents reach the API server at $api"
  host=${api%:*} host=${host#[} host=${host%]}
  server=(--set apiServer.host="$host" --set apiServer.port="${api##*:}")
  [ $helm = 1 ] || kubectl -n "$ns" create configmap edgemesh-apiserver --from-literal=host="$host" --from-literal=port="${api##*:}" \
    --dry-run=client -o yaml | kubectl apply -f -
fi
# Agents and relays read the ConfigMap when they start.
restart=''
if [ "$(configured)" != "$before" ]; then
  for w in daemonset/edgemesh-agent deployment/edgemesh-relay; do
    [ -z "$(kubectl -n "$ns" get "$w" --ignore-not-found -o name)" ] || restart+="
  kubectl -n $ns rollout restart $w"
  done
fi

# apply FILE…: plain manifests, with the images of the registry.
apply() {
  local text
  text=$(cat "$@")
  [ -z "$registry" ] || text=${text//localhost\/edgemesh-/$registry/edgemesh-}
  kubectl apply -f - <<<"$text"
}
# established: kubectl wait fails where a CRD has no conditions yet, so it is repeated; also while the API server cannot be
# reached. Nothing else passes by waiting, such as a missing right.
established() {
  local end=$((SECONDS + 60)) why
  local passes='conditions|not ?found|connect|eof|time(d )?-?out|unavailable|unable to handle|too many requests|etcdserver'
  until why=$(kubectl wait --for=condition=Established --timeout=60s crd/podnetworks.network.edgemesh.io \
    crd/meshnodes.network.edgemesh.io crd/podblocks.network.edgemesh.io crd/noderecords.network.edgemesh.io crd/policygroups.network.edgemesh.io 2>&1); do
    if ((SECONDS >= end)) || [[ ${why,,} = *forbidden* || ! ${why,,} =~ $passes ]]; then
      printf '%s\n' "$why" >&2
      return 1
    fi
    sleep 1
  done
}
# relay_pods prints the pods that the relay's Deployment owns through its ReplicaSets. What `kubectl logs deployment/…` picks by labels may be
# a mirror pod of any node's kubelet, and its log the words of whoever has that node.
relay_pods() {
  local of
  of=$(kubectl -n "$ns" get deployment edgemesh-relay -o 'jsonpath={.metadata.uid}')
  of=$(kubectl -n "$ns" get replicasets -o 'go-template={{range .items}}{{$set := .metadata.uid}}{{range .metadata.ownerReferences}}{{.uid}} {{$set}}{{"\n"}}{{end}}{{end}}' |
    awk -v of="$of" '$1 == of {print $2}')
  kubectl -n "$ns" get pods -o 'go-template={{range .items}}{{$pod := .metadata.name}}{{$mirror := false}}{{range $k, $v := .metadata.annotations}}{{if eq $k "kubernetes.io/config.mirror"}}{{$mirror = true}}{{end}}{{end}}{{if not $mirror}}{{range .metadata.ownerReferences}}{{.uid}} {{$pod}}{{"\n"}}{{end}}{{end}}{{end}}' |
    awk -v sets="$of" 'BEGIN {n = split(sets, all, "\n"); for (i = 1; i <= n; i++) of[all[i]] = 1} $1 in of {print $2}'
}
# chart HELM-ARGUMENT…: the release. Its values stay, the given ones are added.
chart() {
  local network=(--set "podNetwork.create=$create")
  if [ $create = true ]; then
    network+=(--set-json "podNetwork.podCIDRs=$(list "${cidrs[@]}")" --set-json "podNetwork.relays=$(list "${relays[@]}")")
  fi
  helm upgrade --install "$release" edgemesh -n "$ns" --reset-then-reuse-values "${network[@]}" "${trust[@]}" "${server[@]}" "${values[@]}" "$@" >/dev/null
}

if [ -n "$relay_node" ]; then # before the chart looks for such a node
  kubectl label node "$relay_node" network.edgemesh.io/relay=true node-restriction.kubernetes.io/edgemesh-relay= --overwrite
fi
step "manifest"
if [ $helm = 1 ]; then
  kubectl apply -f edgemesh/crds # helm never upgrades them
  established
  chart
else
  apply edgemesh.yaml
  established
fi

# Set only these two fields: the others (encryption, wanCIDRs) belong to the operator.
network() {
  local spec
  spec="{\"podCIDRs\": $(list "${cidrs[@]}"), \"relays\": $(list "${relays[@]}")}"
  if kubectl get podnetwork cluster >/dev/null 2>&1; then
    kubectl patch podnetwork cluster --type merge -p "{\"spec\": $spec}"
    return
  fi
  kubectl create -f - <<YAML
apiVersion: network.edgemesh.io/v1alpha1
kind: PodNetwork
metadata: {name: cluster}
spec: $spec
YAML
}
if [ $helm = 0 ] || [ $create = false ]; then
  step "pod network"
  network
fi

if [ -n "$relay_node" ]; then
  step "relay on $relay_node"
  family=ip4; [[ $announce != *:* ]] || family=ip6
  # kubelet mounts what this ConfigMap has when the pod starts, and what comes later only within 90 s.
  for ((n = 0; n < 30 * wait; n++)); do
    [ -z "$(kubectl -n "$ns" get configmap edgemesh-signer --ignore-not-found -o 'jsonpath={.data.signer}')" ] || break
    sleep 1
  done
  if [ $helm = 1 ]; then
    chart --set relay.enabled=true ${announce:+--set "relay.announce={/$family/$announce}"}
  elif [ -n "$announce" ]; then
    sed "s|^    stateDir:.*|&\n    announce: [\"/$family/$announce\"]|" edgemesh-relay.yaml | apply
  else
    apply edgemesh-relay.yaml
  fi
  if [ $wait = 1 ]; then
    kubectl -n "$ns" rollout status deployment/edgemesh-relay --timeout=120s
    # It prints its addresses to standard output. Private ones are useless elsewhere.
    mapfile -t printed < <(for p in $(relay_pods); do kubectl -n "$ns" logs "$p"; done | grep -xE "$address" |
      grep -vE '^/ip6/(::1|f[cde])|^/ip4/(10\.|127\.|192\.168\.|172\.(1[6-9]|2[0-9]|3[01])\.)' | sort -u)
    if [ ${#printed[@]} = 0 ]; then
      echo "the relay has no public address: run this again with --announce IP" >&2
      exit 1
    fi
    mapfile -t relays < <(printf '%s\n' "${relays[@]}" "${printed[@]}" | awk 'NF && !seen[$0]++')
    if [ $helm = 1 ] && [ $create = true ]; then chart; else network; fi
  fi
fi

# unreached prints the relays at which the controller has no reservation, by its own word in the PodNetwork.
unreached() {
  local r has
  has=" $(kubectl get podnetwork cluster -o 'jsonpath={.status.reservations[*]}') "
  for r in "${relays[@]}"; do
    [[ $has = *" ${r##*/p2p/} "* ]] || echo "${r##*/p2p/}"
  done | sort -u
}
# Only where edges write through it (kubeedge.enabled) does it keep reservations.
enrolls=$(kubectl -n "$ns" get deployment edgemesh-controller --ignore-not-found -o 'jsonpath={.spec.template.spec.containers[*].args}')
controllers=$(kubectl -n "$ns" get deployment edgemesh-controller --ignore-not-found -o 'jsonpath={.spec.replicas}')
if [ $wait = 1 ] && [ ${#relays[@]} -gt 0 ] && [[ $enrolls = *--enroll* ]] && [ "${controllers:-0}" -gt 0 ]; then
  step "controller: reached by each relay?"
  # What the one before had says nothing.
  kubectl -n "$ns" rollout status deployment/edgemesh-controller --timeout=120s || echo "the controller is not rolled out yet" >&2
  end=$((SECONDS + 90))
  while missing=$(unreached) && [ -n "$missing" ] && ((SECONDS < end)); do sleep 2; done
  if [ -z "$missing" ]; then
    echo "yes: edges that are not yet members reach it by each"
  else
    echo "no: the controller has no reservation at these relays, so edges that are not yet members cannot reach it there;" \
      "its log says why, and kubectl get podnetwork cluster -o jsonpath={.status.reservations} where it has one:" $missing >&2
    [ -z "$relay_node" ] || exit 1 # one outside may be started later
  fi
fi

if [ $wait = 1 ]; then
  step "agents"
  kubectl -n "$ns" rollout status daemonset/edgemesh-agent --timeout=180s
  kubectl get meshnodes -o wide
fi
[ -z "$restart" ] || echo "
The API server's address has changed. Restart agents and relays, which read it when they start:$restart"
[ ${#relays[@]} -gt 0 ] || echo "
WARNING: no relay: nodes behind different NATs cannot reach each other; kubectl edgemesh relay add prints the line for a public server; or use --relay-node"
