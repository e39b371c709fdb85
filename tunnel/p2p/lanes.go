package p2p

import (
	"sync"
	"time"

	"github.com/libp2p/go-libp2p/core/network"

	"edgemesh/tunnel/p2p/path/paths"
)

// mostEarly is how long a stream of a lane waits for this node's owner, which is still starting.
const mostEarly = 10 * time.Second

// early is a lane that this node's owner does not serve yet. Its streams wait: a peer sends the first packets without an answer, so
// they would be lost with a stream that is refused.
type early struct {
	once  sync.Once
	ready chan struct{}
	serve func(*paths.Conn, network.Stream) // set before ready is closed
}

func newEarly() *early { return &early{ready: make(chan struct{})} }

// begin has streams served, those that wait and those that come.
func (e *early) begin(serve func(*paths.Conn, network.Stream)) {
	e.once.Do(func() { e.serve = serve; close(e.ready) })
}

// holdLanes has streams of both lanes wait until SetStreamHandler says who serves them.
func (n *Node) holdLanes() {
	for proto, e := range n.early {
		n.onPath(proto, func(c *paths.Conn, s network.Stream) {
			wait := time.NewTimer(mostEarly)
			defer wait.Stop()
			select {
			case <-e.ready:
				e.serve(c, s)
				return
			case <-wait.C:
			case <-n.tasks.ctx.Done():
			}
			_ = s.Reset()
		})
	}
}
