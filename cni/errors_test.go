package main

import (
	"fmt"
	"io/fs"
	"syscall"
	"testing"

	"github.com/containernetworking/cni/pkg/types"

	"edgemesh/internal/cni/conf"
	"edgemesh/internal/cni/ipam"
)

// Causes that tests cannot bring about in a real call.
func TestErrorCodes(t *testing.T) {
	for _, c := range []struct {
		err  error
		code uint
	}{
		{&fs.PathError{Op: "write", Path: "x", Err: syscall.EIO}, types.ErrIOFailure},
		{&fs.PathError{Op: "open", Path: "x", Err: syscall.EACCES}, types.ErrIOFailure},
		{&fs.PathError{Op: "write", Path: "x", Err: syscall.EDQUOT}, types.ErrIOFailure},
		{&fs.PathError{Op: "write", Path: "x", Err: syscall.EROFS}, types.ErrIOFailure},
		{fmt.Errorf("a: %w", conf.ErrArgs), types.ErrInvalidEnvironmentVariables},
		{fmt.Errorf("a: %w", ipam.ErrShared), types.ErrTryAgainLater},
		{fmt.Errorf("a: %w", ipam.ErrBusy), types.ErrTryAgainLater},
		{syscall.EPERM, types.ErrInternal},
		{fmt.Errorf("unheard of"), types.ErrInternal},
	} {
		e := asError("ADD", c.err)
		if e.Code != c.code || e.Msg == "" || c.err.Error() != "unheard of" && e.Details == "" {
			t.Errorf("%v: code %d, want %d: %q, %q", c.err, e.Code, c.code, e.Msg, e.Details)
		}
	}
}
