package dialer

import (
	"context"
	"net"
	"time"

	"github.com/libp2p/go-libp2p"
	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/p2p/transport/quicreuse"
	"github.com/quic-go/quic-go"
	"go.uber.org/fx"
)

const (
	// quicKeepAlive keeps the UDP mapping of a NAT open: many forget one after
	// 30 s without packets, some after 20 s.
	quicKeepAlive = 15 * time.Second
	// quicIdleTimeout ends a connection that stayed silent. Probes notice a dead
	// path much sooner (package paths); this is the last resort.
	quicIdleTimeout = 30 * time.Second
)

// quicReuse configures the UDP sockets and connections of QUIC. It replaces
// go-libp2p's constructor and therefore repeats what that one sets: connections
// are accounted for by the resource manager from their first packet on. made gets
// the manager.
func quicReuse(listen listenUDP, made **quicreuse.ConnManager) libp2p.Option {
	return libp2p.QUICReuse(func(key quic.StatelessResetKey, tok quic.TokenGeneratorKey,
		rcmgr network.ResourceManager, lc fx.Lifecycle) (*quicreuse.ConnManager, error) {
		cm, err := quicreuse.NewConnManager(key, tok,
			quicreuse.OverrideListenUDP(listen),
			quicreuse.ConnContext(func(ctx context.Context, info *quic.ClientInfo) (context.Context, error) {
				addr, err := quicreuse.ToQuicMultiaddr(info.RemoteAddr, quic.Version1)
				if err != nil {
					addr = nil // the resource manager decides without
				}
				scope, err := rcmgr.OpenConnection(network.DirInbound, false, addr)
				if err != nil {
					return ctx, err
				}
				ctx = network.WithConnManagementScope(ctx, scope)
				context.AfterFunc(ctx, scope.Done)
				return ctx, nil
			}),
			quicreuse.VerifySourceAddress(func(a net.Addr) bool { return rcmgr.VerifySourceAddress(a) }),
		)
		if err != nil {
			return nil, err
		}
		cm.ClientConfig().KeepAlivePeriod = quicKeepAlive
		cm.ClientConfig().MaxIdleTimeout = quicIdleTimeout
		lc.Append(fx.StopHook(cm.Close))
		*made = cm
		return cm, nil
	})
}
