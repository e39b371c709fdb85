package join

import (
	"context"
	"slices"
	"time"

	"edgemesh/internal/wake"
)

// lookEvery is how often the file is read. It is small, and reading it notices every way to replace it.
const lookEvery = time.Second

// Watch reads the file at path every second and calls changed with its secrets when they differ from have. For a file that
// cannot be used it calls failed, once per cause; the caller keeps the last good ones. It returns when ctx ends.
func Watch(ctx context.Context, path string, have []Secret, changed func([]Secret), failed func(error)) {
	problem := ""
	for wake.Sleep(ctx, lookEvery) {
		now, err := Load(path)
		switch {
		case err != nil:
			if text := err.Error(); text != problem {
				problem = text
				failed(err)
			}
			continue
		case !slices.Equal(now, have):
			have = now
			changed(now)
		}
		problem = ""
	}
}
