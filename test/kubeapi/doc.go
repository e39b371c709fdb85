// Package kubeapi runs a real etcd and kube-apiserver on loopback ports, for
// tests of everything that talks to the API: they validate, authorize, admit,
// watch, compact and lose data as in production. build.sh builds the programs from
// their Go modules into a cache. No kubelet, no network namespaces, no root.
package kubeapi
