package fleet

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"regexp"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"edgemesh/internal/cli"
	"edgemesh/internal/wording"
)

func newMap(k *cluster) *cobra.Command {
	c := &cobra.Command{
		Use:     "map NODE",
		Short:   "Show NODE's live map to a browser here: all members, if NODE is an observer",
		Example: "  kubectl edgemesh map cloud-1\n  kubectl edgemesh map edge-1 --port 0     # any that is free",
		Args:    cli.Args("NODE"),
	}
	port := c.Flags().Uint16("port", 9475, "port on this machine")
	c.RunE = func(c *cobra.Command, args []string) error { return k.showMap(c, args[0], *port) }
	return c
}

// showMap has the node's agent serve its map in its pod for as long as this runs, and kubectl forward a port to it.
func (k *cluster) showMap(c *cobra.Command, node string, port uint16) error {
	m, err := k.reached(c.Context(), node)
	if err != nil {
		return err
	}
	here, err := net.Listen("tcp4", fmt.Sprintf("127.0.0.1:%d", port))
	if err != nil {
		return fmt.Errorf("--port %d: %w; choose another one, or 0 for any that is free", port, err)
	}
	_ = here.Close() // kubectl takes it
	ctx, end := context.WithCancel(c.Context())
	serve := k.command(ctx, slices.Insert(k.inPod(m.Pod, "map", "--listen", "127.0.0.1:0", "--until-eof"), 1, "-i")...)
	defer func() { end(); _ = serve.Wait() }()
	serve.Stderr = &wording.Writer{To: c.ErrOrStderr()}
	_, err = serve.StdinPipe() // open until this ends
	out, failed := serve.StdoutPipe()
	if err := errors.Join(err, failed, serve.Start()); err != nil {
		return err
	}
	late := time.AfterFunc(k.timeout, end)
	lines := bufio.NewScanner(out)
	lines.Scan()
	if there := regexp.MustCompile(`^http://127\.0\.0\.1:(\d+)/(\?token=\w+)$`).FindStringSubmatch(lines.Text()); there != nil && late.Stop() {
		go func() { _, _ = io.Copy(io.Discard, out); end() }()
		fmt.Fprintf(c.OutOrStdout(), "http://%v/%s\n", here.Addr(), there[2])
		forward := k.command(ctx, "port-forward", "-n", k.namespace, "pod/"+m.Pod, fmt.Sprintf("%d:%s", here.Addr().(*net.TCPAddr).Port, there[1]))
		forward.Stderr = &wording.Writer{To: c.ErrOrStderr()}
		_ = forward.Run() // what it complains of is shown
	}
	if c.Context().Err() != nil {
		return nil // interrupted
	}
	return fmt.Errorf("%s: its map has ended, or was not there within %v%s", node, k.timeout, otherRelease(m))
}
