// Package tunnel carries the packets of pods between nodes: everything that the kernel does not route natively. It knows
// neither libp2p nor netlink; a Device (tunnel/tun) and an Underlay (tunnel/p2p) are handed to it.
//
// A packet that is sent takes these steps:
//
//	1  read      send.go         one Read of the device: virtio header and packet, super-segments whole
//	2  parse     inet/, virtio/  addresses, protocol, flow hash; the header is brought to its one accepted form
//	3  admit     routes.go       source inside an own block, destination inside a member's
//	4  lane      send.go         TCP: stream lane; everything else, and some ACKs, thinned (acks/): datagram lane
//	5  queue     lane.go         the lane's side that never blocks
//	             queue.go        per flow, fair by bytes, bounded in bytes and time
//	             codel.go        which packets report a standing queue to their sender,
//	             mark.go      by a mark, or the loss of one segment
//	6  carrier   writer.go       the writer: which carrier it uses now (epoch/ decides), and what expires without one
//	7  batch     write.go        many frames to one Write of the carrier
//	             pulled.go       or, instead of 6 and 7, an underlay that takes each packet when it may leave (pull/),
//	             datagram.go     of the datagram lane as datagrams
//
// A packet that is received takes the mirror of these:
//
//	1  frames    receive.go      a reader for each carrier
//	             reader.go       big Reads, and frames cut in place
//	2  order     order.go        a new carrier waits for the end of the one before (epoch/ decides)
//	3  check     inet/, virtio/  as above: a peer's packet and its header are input from outside
//	4  admit     routes.go       source owned by the sending peer, destination own
//	5  join      tcpjoin.go      TCP packets that came together become one super-segment
//	             sink.go         datagrams: halves are put together (halves.go)
//	             coalesce.go     and those of one UDP flow become one super-segment
//	             acks/           ACKs of a flow in slow start on a long path are thinned
//	6  write     receive.go      one Write of the device, straight out of the read buffer
//
// Beside these steps:
//
//	drop.go         where a packet is dropped, why, and who counts it
//	choose.go       which of two carriers takes a peer's packets (choice/ decides)
//	unreachable.go  what the sender of a packet without a path is answered
//	frame.go        the wire, drawn
//	tunnel.go       routes, Run and Close
//	peer.go         what is kept for each peer
//	quarantine.go   incoming streams, and the peers that none are taken from
//	buffer.go       packets and their pools
//	dials.go        how many peers a pod can have dialed
//	limits.go       every bound, with its default
//	stats.go        the numbers
//	watch.go        where its loops stand
//	device.go       what a TUN has to do (tun/)
//	underlay.go     what a path to a peer has to do (p2p/)
//	errors.go       what Receive and Run fail with
//
// DESIGN.md says why it is as it is.
package tunnel
