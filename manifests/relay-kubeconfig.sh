#!/usr/bin/env bash
# Prints a kubeconfig for a relay outside the cluster. It allows reading who the members
# are, and nothing else:
#
#   manifests/relay-kubeconfig.sh [--token] [https://API:6443] > relay.kubeconfig
#
# The API server's address defaults to the current kubeconfig's. The relay must reach
# it, and the server's certificate must name it. The relay gets a certificate of its own,
# whose key never goes over the network; where the cluster signs none, or with --token,
# a token. Both are valid for 30 days (DURATION=720h), or for as long as the API server
# allows; the first line says until when. Run this again before that (docs/relay.md).
# With expired credentials a relay keeps the members it knows. To revoke all tokens
# created so far: kubectl -n kube-system delete secret edgemesh-relay-token
# A certificate cannot be revoked; to lock all of them out, remove the User from the
# ClusterRoleBinding edgemesh:relay.
# Set NAMESPACE=NAME if Helm installed to another namespace than kube-system.
set -euo pipefail
umask 077
say() { echo "relay-kubeconfig.sh: $*" >&2; }
only_token=''
if [ "${1:-}" = --token ]; then only_token=1; shift; fi
case ${1:-} in
  ''|https://*) ;;
  http://*) say "$1: without TLS everybody on the path could change who the members are: give the API server's https address"; exit 2 ;;
  -h|--help) sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//p}' "$0"; exit 0 ;;
  *) say "$1 is not a URL like https://203.0.113.10:6443"; exit 2 ;;
esac
ns=${NAMESPACE:-kube-system} duration=${DURATION:-720h}
server=${1:-$(kubectl config view --minify -o 'jsonpath={.clusters[0].cluster.server}')}
if [ -z "${1:-}" ]; then
  case $server in
    *://127.*|*://localhost*|*://\[::1\]*)
      say "the kubeconfig has $server, which a relay on another machine cannot reach: give the API server's public address, such as https://203.0.113.10:6443"
      exit 1 ;;
    http://*)
      say "the kubeconfig has $server: without TLS everybody on the path could change who the members are: give the API server's https address"
      exit 1 ;;
  esac
fi
# With a controller-manager, every namespace has the cluster's CA.
ca=$(kubectl -n "$ns" get configmap kube-root-ca.crt --ignore-not-found -o 'jsonpath={.data.ca\.crt}' | base64 -w0)
[ -n "$ca" ] || ca=$(kubectl config view --minify --raw --flatten -o 'jsonpath={.clusters[0].cluster.certificate-authority-data}')

# Duration in seconds, of which Kubernetes understands hours and minutes as well.
seconds() {
  case $1 in
    *h) echo $((${1%h} * 3600)) ;;
    *m) echo $((${1%m} * 60)) ;;
    *s) echo "${1%s}" ;;
    *) say "DURATION=$1 is not like 720h, 90m or 600s"; exit 2 ;;
  esac
}

# certificate sets user and until; it fails if the cluster signs none within 10 s.
certificate() {
  command -v openssl >/dev/null || { say "openssl is missing"; return 1; }
  local dir name crt=''
  dir=$(mktemp -d) name=edgemesh-relay-$(od -An -N4 -tx4 /dev/urandom | tr -d ' ')
  # shellcheck disable=SC2064 # what the variables are now
  trap "rm -rf '$dir'; kubectl delete csr '$name' --ignore-not-found >/dev/null 2>&1" RETURN
  openssl ecparam -name prime256v1 -genkey -noout -out "$dir/key" &&
    openssl req -new -key "$dir/key" -subj /CN=edgemesh:relay -out "$dir/csr" || return 1
  kubectl create -f - >/dev/null <<YAML || return 1
apiVersion: certificates.k8s.io/v1
kind: CertificateSigningRequest
metadata: {name: $name}
spec:
  request: $(base64 -w0 "$dir/csr")
  signerName: kubernetes.io/kube-apiserver-client
  expirationSeconds: $seconds
  usages: [client auth]
YAML
  kubectl certificate approve "$name" >/dev/null || return 1
  for _ in $(seq 20); do
    crt=$(kubectl get csr "$name" -o 'jsonpath={.status.certificate}')
    [ -z "$crt" ] || break
    sleep 0.5
  done
  [ -n "$crt" ] || { say "the cluster signs no client certificates"; return 1; }
  until=$(date -u -d "$(base64 -d <<<"$crt" | openssl x509 -noout -enddate | cut -d= -f2)" +%Y-%m-%dT%H:%M:%SZ)
  user="client-certificate-data: \"$crt\", client-key-data: \"$(base64 -w0 "$dir/key")\""
}

# token does the same. A token is valid while the object it is bound to exists.
token() {
  local token
  kubectl -n "$ns" create secret generic edgemesh-relay-token --dry-run=client -o yaml | kubectl apply -f - >/dev/null
  read -r token until < <(kubectl -n "$ns" create token edgemesh-relay --duration="$duration" \
    --bound-object-kind=Secret --bound-object-name=edgemesh-relay-token -o 'jsonpath={.status.token} {.status.expirationTimestamp}{"\n"}')
  user="token: \"$token\""
}

seconds=$(seconds "$duration")
user='' until=''
[ -n "$only_token" ] || certificate || { say "using a token instead of a certificate"; user=''; }
[ -n "$user" ] || token

cat <<YAML
# Good until $until.
apiVersion: v1
kind: Config
clusters:
  - name: cluster
    cluster: {server: "$server", certificate-authority-data: "$ca"}
users:
  - name: edgemesh-relay
    user: {$user}
contexts:
  - name: relay
    context: {cluster: cluster, user: edgemesh-relay}
current-context: relay
YAML
