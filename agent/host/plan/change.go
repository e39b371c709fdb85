package plan

import "fmt"

// Change is one difference between the kernel's state and the wanted one, and
// what removes it.
type Change struct {
	What string
	Do   func() error
}

// Apply makes the changes that diff finds, in order, up to the first that fails.
func Apply(diff func() ([]Change, error)) error {
	changes, err := diff()
	if err != nil {
		return err
	}
	for _, c := range changes {
		if err := c.Do(); err != nil {
			return fmt.Errorf("%s: %w", c.What, err)
		}
	}
	return nil
}

// Diff lists what have has and want has not, and the reverse.
func Diff[T comparable](have, want map[T]bool) (gone, missing []T) {
	for t := range have {
		if !want[t] {
			gone = append(gone, t)
		}
	}
	for t := range want {
		if !have[t] {
			missing = append(missing, t)
		}
	}
	return gone, missing
}
