package daemon

import (
	"context"
	"fmt"

	"edgemesh/agent/file"
	"edgemesh/agent/mesh"
)

// Source is where the membership comes from: a file, or an API.
type Source interface {
	// Start returns the membership to begin with, from a snapshot where the
	// source itself has nothing usable; warning says why then. It may wait for
	// a first answer until ctx ends.
	Start(ctx context.Context) (s mesh.State, warning, err error)
	// Watch calls onState for every changed membership and onErr, once per
	// cause, while there is none that can be used. It returns when ctx ends.
	Watch(ctx context.Context, onState func(mesh.State), onErr func(error))
	// String names the source in messages.
	String() string
	// Check reads the source now; the error says why it cannot be used.
	Check(ctx context.Context) error
}

// fileSource is the membership in one YAML file.
type fileSource struct{ path, stateDir string }

var _ Source = fileSource{}

func (f fileSource) Start(context.Context) (mesh.State, error, error) {
	s, warning, err := file.Start(f.path, f.stateDir)
	if err != nil {
		err = configError(fmt.Errorf("membership: %w", err))
	}
	return s, warning, err
}

func (f fileSource) Watch(ctx context.Context, onState func(mesh.State), onErr func(error)) {
	file.Watch(ctx, f.path, onState, onErr)
}

func (f fileSource) String() string { return f.path }

func (f fileSource) Check(context.Context) error {
	_, err := file.Load(f.path)
	return err
}
