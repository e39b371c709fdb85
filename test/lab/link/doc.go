// Package link emulates a slow, long or lossy link in user space, for kernels
// without netem. It makes two TAP devices and carries Ethernet frames between
// them, each direction on its own terms:
//
//	TAP A ─ hole ─ queue ─ rate ─ loss ─ delay, jitter, reorder, twice ─ TAP B      up
//	      silent   tail    one    after it
//	      drop     drop    frame  took its time
//	               when    at a   on the link
//	               full    time
//
// Plug the TAPs into bridges or give them addresses: what is behind them notices
// nothing but the link. A TAP has no offloads, so the kernel splits TCP and UDP
// super-segments and finishes checksums before a frame comes here: every frame
// counted, delayed or lost is one packet that fits the device's MTU.
//
// Queue decides and does no I/O and has no clock of its own; Emulator moves
// frames between it and the TAPs; Control and Client change a running link and
// read its counters.
package link
