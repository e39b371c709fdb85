#!/usr/bin/env bash
# KubeEdge: cloudcore, with the rights that its chart gives it, and what edges need to join.
. "$(dirname "$0")/lib.sh"
k create namespace kubeedge >/dev/null
k -n kubeedge apply -f "$EDGEBIN/crds" -f "$EDGEBIN/rbac.yaml" >/dev/null
wait_for 30 k wait --for=condition=Established crd --all --timeout=30s || die "a CRD is not established"
# With requireAuthorization cloudcore asks the API as the node whose edge asks, and gets MetaServer's certificates signed. Its
# chart does not give it the rights for that (impersonate, certificatesigningrequests, serviceaccountaccesses).
[ "$REQUIRE_AUTH" != true ] || k create clusterrolebinding cloudcore-authorization --clusterrole cluster-admin \
  --user system:serviceaccount:kubeedge:cloudcore >/dev/null
cat >"$RUN/cloudcore.yaml.new" <<Y
apiVersion: cloudcore.config.kubeedge.io/v1alpha1
kind: CloudCore
featureGates: {requireAuthorization: $REQUIRE_AUTH}
kubeAPIConfig: {kubeConfig: "$PKI/cloudcore.conf"}
modules:
  cloudHub:
    advertiseAddress: ["$CLOUD_IP"]
    nodeLimit: 1000
    authorization: {enable: $REQUIRE_AUTH, debug: false, modes: [{node: {enable: true}}]}
    https: {enable: true, address: 0.0.0.0, port: 10002}
    websocket: {enable: true, address: 0.0.0.0, port: 10000}
  cloudStream: # kubectl logs and exec; the API server's connections to edges' kubelets end here
    {enable: true, streamPort: 10003, tunnelPort: 10004, tlsStreamCAFile: "$PKI/ca.crt", tlsStreamCertFile: "$PKI/stream.crt", tlsStreamPrivateKeyFile: "$PKI/stream.key"}
  dynamicController: {enable: true} # the cloud's half of MetaServer; off by default
  iptablesManager: {enable: true, mode: internal} # cloudStream's, on the API server's host
  router: {enable: false}
Y
mv "$RUN/cloudcore.yaml.new" "$RUN/cloudcore.yaml"
wait_for 90 k -n kubeedge get secret tokensecret || die "cloudcore made no token: $RUN/nodes/cloud/log/cloudcore.log"
wait_for 60 on cloud curl -sk "https://$CLOUD_IP:10002/ca.crt" || die "cloudcore does not serve"
token=$(k -n kubeedge get secret tokensecret -o 'jsonpath={.data.tokendata}' | base64 -d)
for n in $ALL_NODES; do
  is_edge "$n" kubeedge || continue
  mkdir -p "$RUN/nodes/$n"
  cat >"$RUN/nodes/$n/edgecore.yaml" <<Y
apiVersion: edgecore.config.kubeedge.io/v1alpha2
kind: EdgeCore
featureGates: {requireAuthorization: $REQUIRE_AUTH}
database: {dataSource: /var/lib/kubeedge/edgecore.db}
modules:
  edgeHub:
    httpServer: https://$CLOUD_IP:10002
    websocket: {enable: true, server: "$CLOUD_IP:10000", handshakeTimeout: 30, readDeadline: 15, writeDeadline: 15}
    token: "$token"
  edged:
    hostnameOverride: $n
    nodeIP: $(node_ip "$n")
    podSandboxImage: $IMG/pause:1
    rootDirectory: /var/lib/kubelet
    nodeLabels: {e2e.test/site: "$(node_site "$n")"}
    tailoredKubeletConfig:
      cgroupDriver: cgroupfs
      containerRuntimeEndpoint: unix:///run/containerd/containerd.sock
      imageServiceEndpoint: unix:///run/containerd/containerd.sock
      clusterDomain: cluster.local
      clusterDNS: [$EDGE_DNS_IP]
      resolvConf: /etc/resolv.conf
      staticPodPath: /etc/kubeedge/manifests
      volumePluginDir: /var/lib/kubelet/volumeplugins
      evictionHard: {memory.available: "0%", nodefs.available: "0%", nodefs.inodesFree: "0%", imagefs.available: "0%", imagefs.inodesFree: "0%"}
      imageGCHighThresholdPercent: 100
      imageGCLowThresholdPercent: 99
  edgeStream: {enable: true, server: "$CLOUD_IP:10004", handshakeTimeout: 30, readDeadline: 15, writeDeadline: 15}
  eventBus: {enable: false} # needs an MQTT broker
  deviceTwin: {enable: true}
  metaManager:
    metaServer: {enable: true, server: "127.0.0.1:10550"}
Y
done
log "cloudcore serves"
