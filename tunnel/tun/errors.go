package tun

import "errors"

var (
	// ErrNoDevice says that the kernel's TUN driver is out of reach.
	ErrNoDevice = errors.New("no /dev/net/tun: run `modprobe tun` on the host, or mount /dev/net/tun into the pod")
	// ErrPermission says that the process may not make a network interface.
	ErrPermission = errors.New("not permitted: run as root or with CAP_NET_ADMIN, in a container also with /dev/net/tun as an allowed device")
	// ErrBusy says that another process holds the interface open.
	ErrBusy = errors.New("the interface is held by another process; is a second agent running?")
	// ErrNotTUN says that the name belongs to an interface of another kind.
	ErrNotTUN = errors.New("the name is taken by an interface that is not a TUN; rename or remove it")
	// ErrFrame says that a frame's virtio-net header contradicts its packet.
	ErrFrame = errors.New("malformed frame")

	// errNoOffload makes Open fall back to the portable device.
	errNoOffload = errors.New("no virtio-net header")
)
