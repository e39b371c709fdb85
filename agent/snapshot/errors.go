package snapshot

import "errors"

// ErrTorn means that the snapshot is not what Save wrote: it was cut short by a power
// failure, edited, or written by another program.
var ErrTorn = errors.New("snapshot is torn or not ours")
