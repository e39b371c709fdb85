package snapshot

import "errors"

// ErrTorn means that the snapshot is not what Save wrote: cut short by a power
// failure, edited, or of another program.
var ErrTorn = errors.New("snapshot is torn or not ours")
