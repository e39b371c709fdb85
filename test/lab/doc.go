// Package lab builds small internets out of network namespaces, for the tests
// and the demo: a WAN, relays, sites behind NAT routers, nodes and pods. The
// real binaries run in it; it only sees what their contracts promise.
//
//	WAN (a bridge, 5.5.0.0/16 and 2a05:5::/32, which libp2p takes for public)
//	 ├─ 5.5.0.1      the internet: the WAN's own namespace, default route of all
//	 ├─ 5.5.5.5 …    relays
//	 ├─ 5.5.1.1 …    one router per site, NAT of some kind, and behind it
//	 │                 192.168.1.1   the router's LAN bridge, the same in every site
//	 │                 192.168.1.11… nodes and plain hosts
//	 └─ 5.5.101.1 …  cloud nodes
//
// Every lab has a tag of its own. Its namespaces are called TAG-NAME and all its
// files lie below /tmp/TAG, so labs run side by side and nothing of the host's
// /run, /etc/cni or network is touched. A lab is removed by Close, or, when its
// process dies, however it dies, by a small watcher process that notices.
package lab
