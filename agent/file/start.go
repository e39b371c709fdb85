package file

import (
	"errors"
	"fmt"
	"io/fs"

	"edgemesh/agent/mesh"
	"edgemesh/agent/snapshot"
)

// Start returns the membership to start with: the one in path or, if path is missing or
// broken, the snapshot in stateDir. In the second case warning says what is wrong with
// path. Without a usable snapshot err is path's problem, together with the snapshot's if
// there is one. Call Watch after a successful Start.
func Start(path, stateDir string) (s mesh.State, warning, err error) {
	s, problem := Load(path)
	if problem == nil {
		return s, nil, nil
	}
	s, err = snapshot.Load(stateDir)
	switch {
	case err == nil:
		return s, fmt.Errorf("%w; starting from the snapshot in %s", problem, stateDir), nil
	case errors.Is(err, fs.ErrNotExist):
		return mesh.State{}, nil, problem
	}
	return mesh.State{}, nil, fmt.Errorf("%w (the snapshot is unusable too: %w)", problem, err)
}
