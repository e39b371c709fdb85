// Command pause is the sandbox container of a pod: it holds the pod's namespaces
// and, as PID 1 of a shared PID namespace, reaps orphans.
package main

import (
	"os"
	"os/signal"

	"golang.org/x/sys/unix"
)

func main() {
	c := make(chan os.Signal, 16)
	signal.Notify(c, unix.SIGINT, unix.SIGTERM, unix.SIGCHLD)
	for s := range c {
		if s != unix.SIGCHLD {
			os.Exit(0)
		}
		for {
			if pid, err := unix.Wait4(-1, nil, unix.WNOHANG, nil); pid <= 0 || err != nil {
				break
			}
		}
	}
}
