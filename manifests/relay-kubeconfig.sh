#!/usr/bin/env bash
# Prints a kubeconfig for a relay outside the cluster. It allows reading who the members
# are, and nothing else:
#
#   manifests/relay-kubeconfig.sh [https://API:6443] > relay.kubeconfig
#
# The API server's address defaults to the current kubeconfig's. The relay must reach
# it, and the server's certificate must name it. The token is valid for a year
# (DURATION=8760h), or for as long as the API server allows; the first line says until
# when. Run this again before that (docs/relay.md). With an expired token a relay keeps
# the members it knows. To revoke all tokens created so far:
# kubectl -n kube-system delete secret edgemesh-relay-token
# Set NAMESPACE=NAME if Helm installed to another namespace than kube-system.
set -euo pipefail
umask 077
case ${1:-} in
  ''|https://*|http://*) ;;
  -h|--help) sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//p}' "$0"; exit 0 ;;
  *) echo "relay-kubeconfig.sh: $1 is not a URL like https://203.0.113.10:6443" >&2; exit 2 ;;
esac
ns=${NAMESPACE:-kube-system}
server=${1:-$(kubectl config view --minify -o 'jsonpath={.clusters[0].cluster.server}')}
if [ -z "${1:-}" ]; then
  case $server in
    *://127.*|*://localhost*|*://\[::1\]*)
      echo "relay-kubeconfig.sh: the kubeconfig has $server, which a relay on another machine cannot reach: give the API server's public address, such as https://203.0.113.10:6443" >&2
      exit 1 ;;
  esac
fi
# With a controller-manager, every namespace has the cluster's CA.
ca=$(kubectl -n $ns get configmap kube-root-ca.crt --ignore-not-found -o 'jsonpath={.data.ca\.crt}' | base64 -w0)
[ -n "$ca" ] || ca=$(kubectl config view --minify --raw --flatten -o 'jsonpath={.clusters[0].cluster.certificate-authority-data}')

# A token is valid while the object it is bound to exists.
kubectl -n $ns create secret generic edgemesh-relay-token --dry-run=client -o yaml | kubectl apply -f - >/dev/null
read -r token until < <(kubectl -n $ns create token edgemesh-relay --duration="${DURATION:-8760h}" \
  --bound-object-kind=Secret --bound-object-name=edgemesh-relay-token -o 'jsonpath={.status.token} {.status.expirationTimestamp}{"\n"}')

cat <<YAML
# Good until $until.
apiVersion: v1
kind: Config
clusters:
  - name: cluster
    cluster: {server: "$server", certificate-authority-data: "$ca"}
users:
  - name: edgemesh-relay
    user: {token: "$token"}
contexts:
  - name: relay
    context: {cluster: cluster, user: edgemesh-relay}
current-context: relay
YAML
