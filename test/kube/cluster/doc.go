// Package cluster is a real Kubernetes of four to five nodes on one machine, each
// node in network, mount, UTS, IPC, PID and cgroup namespaces of its own: etcd,
// kube-apiserver, kube-controller-manager, kube-scheduler, kubelet, kube-proxy and
// containerd as they are released, and no pod network until one is installed.
//
//	WAN 5.5.5.0/24, which libp2p takes for public
//	 ├─ .10   cloud        control plane and worker
//	 ├─ .20   relay        a server outside of the cluster
//	 ├─ .101  router of site a ── 192.168.1.1 ── edge-a1 .10 (and edge-a2 .11, when it joins)
//	 └─ .102  router of site b ── 192.168.1.1 ── edge-b1 .10, edge-b2 .11
//
// Both sites have one LAN prefix: edge-a1 and edge-b1 have one InternalIP. The
// scripts beside do the work, and can be called by hand; this package calls them.
//
// A cluster has a tag of its own: its namespaces are called TAG-…, its cgroups TAG,
// and all its files lie below /tmp/TAG. It is removed by Close, or, when its process
// dies in whatever way, by a small watcher process that notices.
package cluster
