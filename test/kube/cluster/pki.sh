#!/usr/bin/env bash
# CA, certificates of control plane, nodes and admin, and their kubeconfigs.
. "$(dirname "$0")/lib.sh"
mkdir -p "$PKI"
cd "$PKI" || exit
q() { openssl "$@" 2>>"$PKI/openssl.log"; }
key() { q ecparam -name prime256v1 -genkey -noout -out "$1"; chmod 600 "$1"; }
cert() { # NAME SUBJECT EKU [SAN]
  key "$1.key"
  q req -new -key "$1.key" -subj "$2" -out "$1.csr"
  printf 'basicConstraints=CA:FALSE\nkeyUsage=digitalSignature\nextendedKeyUsage=%s\n%s\n' "$3" "${4:+subjectAltName=$4}" >"$1.ext"
  q x509 -req -in "$1.csr" -CA ca.crt -CAkey ca.key -CAcreateserial -days 30 -extfile "$1.ext" -out "$1.crt"
  rm -f "$1.csr" "$1.ext"
}
b64() { base64 -w0 <"$1"; }
conf() { # NAME SERVER FILE: kubeconfig with the certificate NAME
  cat >"$3" <<Y
apiVersion: v1
kind: Config
clusters: [{name: e2e, cluster: {server: "$2", certificate-authority-data: $(b64 ca.crt)}}]
users: [{name: $1, user: {client-certificate-data: $(b64 "$1.crt"), client-key-data: $(b64 "$1.key")}}]
contexts: [{name: e2e, context: {cluster: e2e, user: $1}}]
current-context: e2e
Y
  chmod 600 "$3"
}
key ca.key
q req -x509 -new -key ca.key -subj /CN=e2e-ca -days 30 -addext keyUsage=critical,keyCertSign,cRLSign,digitalSignature -out ca.crt
q genrsa -out sa.key 2048
q rsa -in sa.key -pubout -out sa.pub
cert apiserver /CN=kube-apiserver serverAuth "IP:$CLOUD_IP,IP:127.0.0.1,IP:${API_SVC_IP//,/,IP:},IP:$API_ENDPOINT,IP:$RELAY_IP,DNS:kubernetes,DNS:kubernetes.default,DNS:kubernetes.default.svc,DNS:kubernetes.default.svc.cluster.local"
cert apiserver-kubelet-client /O=system:masters/CN=apiserver-kubelet-client clientAuth
cert front-proxy /CN=front-proxy-client clientAuth # the API server's, towards aggregated APIs
cert admin /O=system:masters/CN=admin clientAuth
cert kcm /CN=system:kube-controller-manager clientAuth
cert scheduler /CN=system:kube-scheduler clientAuth
cert kube-proxy /CN=system:kube-proxy clientAuth
for n in $ALL_NODES; do cert "node-$n" "/O=system:nodes/CN=system:node:$n" clientAuth; done
cert stream /CN=kubeedge-stream serverAuth "IP:127.0.0.1,IP:$CLOUD_IP" # cloudcore's, towards the API server
# What the chart's service account may do; a file for the CA, since cloudcore hands its name on.
cert cloudcore /CN=system:serviceaccount:kubeedge:cloudcore clientAuth
conf cloudcore "https://$CLOUD_IP:$API_PORT" cloudcore.conf
sed -i "s|certificate-authority-data: [^}]*|certificate-authority: $PKI/ca.crt|" cloudcore.conf
# shellcheck disable=SC2086 # the names are words
for n in admin kcm scheduler kube-proxy $(printf 'node-%s ' $ALL_NODES); do
  conf "$n" "https://$CLOUD_IP:$API_PORT" "$n.conf"
done
conf admin "https://127.0.0.1:${LOCAL_PORT:?}" "$RUN/kubeconfig" # for this machine, see apiport
