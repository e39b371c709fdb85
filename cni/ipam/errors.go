package ipam

import "errors"

var (
	// ErrFull means that every address of a family is in use by a living pod.
	ErrFull = errors.New("no free pod address")
	// ErrWanted means that a requested address cannot be given.
	ErrWanted = errors.New("requested address is not available")
	// ErrLost means that a newer container of the pod has taken its address.
	ErrLost = errors.New("address was taken over by a newer container")
	// ErrShared means that a pod of a network with another store got the same
	// address at the same moment.
	ErrShared = errors.New("address is also a pod's of another network")
	// ErrBusy means that the store's lock was not available in time.
	ErrBusy = errors.New("address store is locked")
	// ErrInUse means that a living attachment has the address.
	ErrInUse = errors.New("address is in use")
	// ErrNotRecord means that a file is not an address record.
	ErrNotRecord = errors.New("not an address record")
)
