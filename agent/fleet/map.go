package fleet

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"edgemesh/internal/cli"
	"edgemesh/internal/wording"
)

// page is what an agent prints of its map, and forwarded what kubectl does of a port.
var page, forwarded = regexp.MustCompile(`^http://127\.0\.0\.1:(\d+)/(\?token=\w+)$`), regexp.MustCompile(`^Forwarding from 127\.0\.0\.1:(\d+) `) //nolint:gochecknoglobals // constants

func newMap(k *cluster) *cobra.Command {
	var port uint16
	c := &cobra.Command{
		Use:     "map NODE",
		Short:   "Show NODE's live map to a browser here: all members, if NODE is an observer",
		Example: "  kubectl edgemesh map cloud-1\n  kubectl edgemesh map edge-1 --port 0     # any that is free",
		Args:    cli.Args("NODE"),
		RunE:    func(c *cobra.Command, args []string) error { return k.showMap(c, args[0], port) },
	}
	c.Flags().Uint16Var(&port, "port", 9475, "port on this machine")
	return c
}

// showMap has the node's agent serve its map in its pod for as long as this runs, and kubectl forward a port to it.
func (k *cluster) showMap(c *cobra.Command, node string, port uint16) error {
	m, err := k.reached(c.Context(), node)
	if err != nil {
		return err
	}
	ctx, end := context.WithCancelCause(c.Context())
	var running sync.WaitGroup
	defer running.Wait()
	defer end(nil)
	first := func(like *regexp.Regexp, args ...string) []string {
		run, line := k.command(ctx, args...), make(chan string, 1)
		run.Stderr = &wording.Writer{To: c.ErrOrStderr()}
		_, err := run.StdinPipe() // open until it ends
		out, failed := run.StdoutPipe()
		if err = errors.Join(err, failed, run.Start()); err != nil {
			end(err)
			return nil
		}
		running.Go(func() {
			for s := bufio.NewScanner(out); s.Scan(); {
				select {
				case line <- s.Text():
				default: // of no use
				}
			}
			end(fmt.Errorf("%s: its map has ended: %w%s", node, cmp.Or(run.Wait(), io.EOF), otherRelease(m)))
		})
		select {
		case text := <-line:
			return like.FindStringSubmatch(text)
		case <-ctx.Done():
		case <-time.After(k.timeout):
		}
		return nil
	}
	there := first(page, slices.Insert(k.inPod(m.Pod, "map", "--listen", "127.0.0.1:0", "--until-eof"), 1, "-i")...)
	if there != nil {
		if here := first(forwarded, "port-forward", "-n", k.namespace, "pod/"+m.Pod, fmt.Sprintf("%d:%s", port, there[1])); here != nil {
			fmt.Fprintf(c.OutOrStdout(), "http://127.0.0.1:%s/%s\n", here[1], there[2])
			<-ctx.Done()
		}
	}
	end(fmt.Errorf("%s: no map: its agent, or kubectl port-forward, gave no address within %v%s", node, k.timeout, otherRelease(m)))
	if c.Context().Err() != nil {
		return nil // interrupted
	}
	return context.Cause(ctx)
}
