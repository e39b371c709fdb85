// Package tunnel carries the packets of pods between nodes: everything that the
// kernel does not route natively. It knows neither libp2p nor netlink; a Device
// (tunnel/tun) and an Underlay (tunnel/p2p) are handed to it.
//
// The way of a packet that is sent, one file per step:
//
//  1. read     send.go      one Read of the Device: virtio header and packet, super-segments whole
//  2. parse    packet.go    addresses, protocol, L4 header, flow hash
//     normal   vnet.go      the virtio header is brought to its one accepted form; checksum.go
//  3. admit    routes.go    source inside an own block, destination inside a member's
//  4. lane     send.go      TCP: stream lane; everything else: datagram lane
//  5. queue    queue.go     per flow, fair by bytes, bounded in bytes and time
//  6. batch    write.go     many frames to one Write of a Carrier
//     alone    datagram.go  or each as a datagram, where the path takes them
//  7. carrier  lane.go      which carrier a lane uses now; open.go gets the next one
//
// And its mirror:
//
//  1. frames   reader.go    a big Read of the carrier, frames in place
//  2. order    order.go     a new epoch waits for the end of the one before
//  3. parse    packet.go    as above
//     check    vnet.go      the virtio header of a peer is input from outside
//  4. admit    routes.go    source owned by the sending peer, destination own
//     alone    sink.go      datagrams: halves put together, coalesce.go: flows joined
//     thinned  acks.go      ACKs of a flow in slow start on a long path
//  5. write    receive.go   one Write of the Device, straight out of the read buffer
//
// frame.go draws the wire layout. DESIGN.md says why it is as it is.
package tunnel
